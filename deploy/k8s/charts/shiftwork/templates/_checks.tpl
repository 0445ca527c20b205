{{/* What cannot work is refused before anything is made. */}}
{{- define "shiftwork.checks" -}}
{{- $shared := include "common.shared" . | fromYaml -}}
{{- $faults := list -}}
{{- if and $shared.nats.url .Values.nats.enabled -}}
{{- $faults = append $faults "global.nats.url names servers of your own: set nats.enabled=false as well" -}}
{{- end -}}
{{- if and (not $shared.nats.url) (not .Values.nats.enabled) -}}
{{- $faults = append $faults "nats.enabled is false: set global.nats.url to nats://HOST:PORT" -}}
{{- end -}}
{{- range splitList "," $shared.nats.url -}}
{{- if and $shared.nats.caConfigMap (not (hasPrefix "tls://" .)) -}}
{{- $faults = append $faults (printf "global.nats.caConfigMap vouches for servers behind tls://: write tls://HOST:PORT in global.nats.url, not %s" (. | quote)) -}}
{{- end -}}
{{- end -}}
{{- if and (not .Values.nats.enabled) (not $shared.secrets.nats) -}}
{{- $faults = append $faults "nats.enabled is false: set global.secrets.nats to the Secret with its users' passwords" -}}
{{- end -}}
{{- if and $shared.database.host .Values.postgres.enabled -}}
{{- $faults = append $faults "global.database.host names a server of your own: set postgres.enabled=false as well" -}}
{{- end -}}
{{- if and (not $shared.database.host) (not .Values.postgres.enabled) -}}
{{- $faults = append $faults "postgres.enabled is false: set global.database.host" -}}
{{- end -}}
{{- if and (not .Values.postgres.enabled) (not $shared.secrets.postgres) -}}
{{- $faults = append $faults "postgres.enabled is false: set global.secrets.postgres to the Secret with its roles' passwords" -}}
{{- end -}}
{{- if eq $shared.tasks.namespace .Release.Namespace -}}
{{- $faults = append $faults (printf "global.tasks.namespace is %s, where the platform itself is: tasks must not share a namespace with its Secrets" .Release.Namespace) -}}
{{- end -}}
{{- if $faults -}}
{{- fail (printf "\n  - %s\n" (join "\n  - " $faults)) -}}
{{- end -}}
{{- end -}}
