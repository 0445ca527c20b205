{{/*
The defaults of `global`, in one place for every chart. The umbrella's values.yaml has the same with
comments (tests compare the two).
*/}}
{{- define "common.defaults" -}}
name: ""
image:
  registry: ""
  tag: ""
  pullPolicy: IfNotPresent
  pullSecrets: []
secrets:
  nats: ""
  postgres: ""
  keys: ""
database:
  host: ""
  port: 5432
  name: shiftwork
  sslmode: ""
  caConfigMap: ""
nats:
  url: ""
  caConfigMap: ""
tasks:
  namespace: shiftwork-tasks
podPolicy: {}
gateway:
  url: ""
networkPolicies:
  enabled: true
  monitoringNamespace: monitoring
  dns:
    namespace: kube-system
    ports: [53]
  apiServerPorts: [443, 6443]
monitoring:
  enabled: false
  labels: {}
  interval: 30s
traces:
  endpoint: ""
  ratio: 1.0
  headersSecret: ""
logFormat: json
logLevel: info
{{- end -}}

{{/* `global` with what was left out filled in, as YAML. */}}
{{- define "common.shared" -}}
{{- $given := deepCopy (.Values.global | default dict) -}}
{{- mergeOverwrite (include "common.defaults" . | fromYaml) $given | toYaml -}}
{{- end -}}

{{/* What every object of this platform begins with: the release's name, or global.name. */}}
{{- define "common.prefix" -}}
{{- $shared := include "common.shared" . | fromYaml -}}
{{- $shared.name | default .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "common.fullname" -}}
{{ include "common.prefix" . }}-{{ .Chart.Name }}
{{- end -}}

{{/* Names of the three Secrets. */}}
{{- define "common.secret" -}}
{{- $shared := include "common.shared" .root | fromYaml -}}
{{- get $shared.secrets .of | default (printf "%s-%s" (include "common.prefix" .root) .of) -}}
{{- end -}}

{{- define "common.natsUrl" -}}
{{- $shared := include "common.shared" . | fromYaml -}}
{{- $shared.nats.url | default (printf "nats://%s-nats:4222" (include "common.prefix" .)) -}}
{{- end -}}

{{/* postgresql://ROLE@HOST:PORT/DATABASE, without a password. */}}
{{- define "common.databaseUrl" -}}
{{- $shared := include "common.shared" .root | fromYaml -}}
{{- $to := $shared.database -}}
{{- $host := $to.host | default (printf "%s-postgres" (include "common.prefix" .root)) -}}
{{- $options := list -}}
{{- if $to.sslmode }}{{ $options = append $options (printf "sslmode=%s" $to.sslmode) }}{{ end -}}
{{- if $to.caConfigMap }}{{ $options = append $options "sslrootcert=/etc/shiftwork/database-ca/ca.crt" }}{{ end -}}
{{- $database := .database | default $to.name -}}
postgresql://{{ .role }}@{{ $host }}:{{ $to.port | int }}/{{ $database }}{{ if $options }}?{{ join "&" $options }}{{ end }}
{{- end -}}

{{/* Where tasks and people inside the cluster find the gateway. */}}
{{- define "common.gatewayUrl" -}}
{{- $shared := include "common.shared" . | fromYaml -}}
{{- $shared.gateway.url | default (printf "http://%s-gateway.%s:8642" (include "common.prefix" .) .Release.Namespace) -}}
{{- end -}}

{{/* REGISTRY/REPOSITORY:TAG or @DIGEST; `image` of the chart goes before `global.image`. */}}
{{- define "common.image" -}}
{{- $shared := include "common.shared" .root | fromYaml -}}
{{- $image := .image -}}
{{- $registry := $image.registry | default $shared.image.registry -}}
{{- $name := $registry | empty | ternary $image.repository (printf "%s/%s" $registry $image.repository) -}}
{{- if $image.digest -}}
{{ $name }}@{{ $image.digest }}
{{- else -}}
{{ $name }}:{{ $image.tag | default $shared.image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* The pod policy as submit and the launcher read it: the platform's images, then the site's. */}}
{{- define "common.podPolicy" -}}
{{- $shared := include "common.shared" . | fromYaml -}}
{{- $own := dict
  "sdk_image" (include "common.image" (dict "root" . "image" (dict "repository" "shiftwork/platform")))
  "default_image" (include "common.image" (dict "root" . "image" (dict "repository" "shiftwork/task")))
-}}
{{- mergeOverwrite $own $shared.podPolicy | toYaml -}}
{{- end -}}
