{{/* Selector labels never change: a Deployment's selector cannot. */}}
{{- define "common.selector" -}}
app.kubernetes.io/name: {{ .component | default .root.Chart.Name }}
app.kubernetes.io/instance: {{ include "common.prefix" .root }}
{{- end -}}

{{- define "common.labels" -}}
{{ include "common.selector" . }}
app.kubernetes.io/component: {{ .component | default .root.Chart.Name }}
app.kubernetes.io/part-of: shiftwork
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end -}}

{{/* Labels as a query: key=value,key=value. */}}
{{- define "common.query" -}}
{{- $parts := list -}}
{{- range $key, $value := . }}{{ $parts = append $parts (printf "%s=%s" $key $value) }}{{ end -}}
{{ join "," $parts }}
{{- end -}}

{{/* The `restricted` profile, for the pod and for a container of it. */}}
{{- define "common.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "common.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* imagePullSecrets, and from `pod` of a chart's values the nodes where its pods run. */}}
{{- define "common.podPlace" -}}
{{- $shared := include "common.shared" .root | fromYaml -}}
{{- with $shared.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- $pod := .pod | default .root.Values.pod }}
{{- with $pod.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with $pod.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $pod.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $pod.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $pod.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Replicas on different nodes where there are any. */}}
{{- define "common.spread" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "common.selector" . | nindent 8 }}
{{- end -}}
