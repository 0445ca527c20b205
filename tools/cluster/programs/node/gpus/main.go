// Gpus is a device plugin that offers GPUs which are not there, so that a machine without any
// shows the whole way of a GPU through Kubernetes: registration, capacity, allocation to a
// container, and the kubelet's own record of the containers that have them.
//
//	gpus -resource nvidia.com/gpu -count 2
//
// A container gets its devices' indices in NVIDIA_VISIBLE_DEVICES. When the kubelet restarts it
// empties its folder; the plugin then registers again.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	lookEvery       = 500 * time.Millisecond
	registerSeconds = 5 * time.Second
	prefix          = "gpu-"
)

type plugin struct {
	api.UnimplementedDevicePluginServer
	count   int
	stopped context.Context
}

func (p *plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

func (p *plugin) ListAndWatch(_ *api.Empty, stream api.DevicePlugin_ListAndWatchServer) error {
	devices := make([]*api.Device, 0, p.count)
	for index := range p.count {
		devices = append(devices, &api.Device{ID: prefix + strconv.Itoa(index), Health: api.Healthy})
	}
	if err := stream.Send(&api.ListAndWatchResponse{Devices: devices}); err != nil {
		return err
	}
	select {
	case <-stream.Context().Done():
	case <-p.stopped.Done():
	}
	return nil
}

func (p *plugin) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	answer := &api.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		indices := make([]string, 0, len(container.DevicesIds))
		for _, id := range container.DevicesIds {
			indices = append(indices, strings.TrimPrefix(id, prefix))
		}
		sort.Strings(indices)
		given := map[string]string{"NVIDIA_VISIBLE_DEVICES": strings.Join(indices, ",")}
		answer.ContainerResponses = append(answer.ContainerResponses, &api.ContainerAllocateResponse{Envs: given})
	}
	return answer, nil
}

// serve offers the plugin on its socket and registers it, until the socket or the context is gone.
func serve(ctx context.Context, folder, resource string, count int) error {
	name := "shiftwork-gpus.sock"
	socket := filepath.Join(folder, name)
	if err := os.Remove(socket); err != nil && !os.IsNotExist(err) {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	served, stop := context.WithCancel(ctx)
	defer stop()
	server := grpc.NewServer()
	defer server.Stop()
	api.RegisterDevicePluginServer(server, &plugin{count: count, stopped: served})
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	if err := register(ctx, filepath.Join(folder, "kubelet.sock"), name, resource); err != nil {
		return err
	}
	log.Printf("registered %d of %s", count, resource)
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		case <-time.After(lookEvery):
			if _, err := os.Stat(socket); err != nil {
				return fmt.Errorf("the kubelet was restarted")
			}
		}
	}
}

func register(ctx context.Context, kubelet, name, resource string) error {
	connection, err := grpc.NewClient("unix://"+kubelet, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	limited, cancel := context.WithTimeout(ctx, registerSeconds)
	defer cancel()
	_, err = api.NewRegistrationClient(connection).Register(limited, &api.RegisterRequest{
		Version:      api.Version,
		Endpoint:     name,
		ResourceName: resource,
		Options:      &api.DevicePluginOptions{},
	})
	return err
}

func main() {
	folder := flag.String("folder", api.DevicePluginPath, "where the kubelet looks for plugins")
	resource := flag.String("resource", "nvidia.com/gpu", "the name of what is offered")
	count := flag.Int("count", 2, "how many")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	for ctx.Err() == nil {
		if err := serve(ctx, *folder, *resource, *count); err != nil {
			log.Print(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(lookEvery):
		}
	}
}
