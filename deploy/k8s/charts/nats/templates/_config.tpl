{{/* The server's configuration. The users and their permissions: files/accounts.conf. */}}
{{- define "nats.config" -}}
server_name: $NATS_SERVER_NAME
port: 4222
http_port: 8222
# As libs/contracts/envelope.py declares it (PAYLOAD_BYTES_MAX).
max_payload: 8388608
max_connections: {{ .Values.maxConnections | int }}

jetstream {
  store_dir: "/data"
  max_memory_store: 64MB
  max_file_store: {{ include "nats.storeBytes" . }}
  sync_interval: {{ .Values.syncInterval | quote }}
}
{{- if gt (int .Values.replicas) 1 }}

cluster {
  name: shiftwork
  port: 6222
  routes: $NATS_ROUTES
  authorization {
    user: route
    password: $NATS_PASSWORD_ROUTE
    timeout: 5
  }
}
{{- end }}

{{ tpl (.Files.Get "files/accounts.conf") . }}
{{- end -}}

{{/* Nine tenths of the volume: streams are refused before the disk is full. */}}
{{- define "nats.storeBytes" -}}
{{- $units := dict "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- $unit := regexFind "[MGT]i$" .Values.persistence.size -}}
{{- $number := trimSuffix $unit .Values.persistence.size | int64 -}}
{{- div (mul $number (get $units $unit | int64) 9) 10 -}}
{{- end -}}

{{/* The users with a password: the services, the administrator who makes streams, and those who
read events. */}}
{{- define "nats.users" -}}
{{- $users := "[admin, submit, scheduler, launcher, log_collector, quota, monitor, gateway]" | fromYamlArray -}}
{{- range include "nats.monitoring" . | fromYamlArray -}}
{{- $users = append $users (printf "monitoring_%s" .) -}}
{{- end -}}
{{- toYaml $users -}}
{{- end -}}

{{- define "nats.monitoring" -}}
{{- toYaml (.Values.monitoringUsers | default list) -}}
{{- end -}}
