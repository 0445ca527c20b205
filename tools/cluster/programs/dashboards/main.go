// Command dashboards checks files of Grafana dashboards against Grafana's published schema: every
// field has to be known and of the right type, in the dashboard, its panels' options and its
// queries.
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

func main() {
	plugins.RegisterDefaultPlugins()
	failed := false
	for _, path := range os.Args[1:] {
		if err := check(path); err != nil {
			fmt.Fprintf(os.Stderr, "%s:\n%v\n", path, err)
			failed = true
		}
	}
	if failed || len(os.Args) < 2 {
		os.Exit(1)
	}
}

func check(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var found dashboard.Dashboard
	if err := found.UnmarshalJSONStrict(text); wrong(err) {
		return err
	}
	if err := found.Validate(); wrong(err) {
		return err
	}
	return nil
}

// The schema's functions return an empty list of errors as an error that is not nil.
func wrong(err error) bool {
	var list cog.BuildErrors
	return err != nil && (!errors.As(err, &list) || len(list) > 0)
}
