{{/*
The peers that may reach a service, and those that it may reach: its two servers, the cluster's DNS,
and what `ingress` and `egress` of the chart add. Network plugins allow probes of the kubelet.
*/}}
{{- define "common.networkPolicy" -}}
{{- $shared := include "common.shared" .root | fromYaml -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ include "common.fullname" .root }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "common.labels" . | nindent 4 }}
spec:
  podSelector:
    matchLabels:
      {{- include "common.selector" . | nindent 6 }}
  policyTypes: [Ingress, Egress]
  ingress:
    - from:
        {{- include "common.monitoringPeer" .root | nindent 8 }}
      ports:
        - {port: http, protocol: TCP}
    {{- with .ingress }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  egress:
    {{- include "common.dnsEgress" .root | nindent 4 }}
    {{- include "common.serversEgress" .root | nindent 4 }}
    {{- with $shared.traces.endpoint }}
    - ports:
        {{- $port := regexFind ":[0-9]+(/|$)" . | trimSuffix "/" | trimPrefix ":" }}
        - {port: {{ $port | default (hasPrefix "https:" . | ternary "443" "80") }}, protocol: TCP}
    {{- end }}
    {{- if .api }}
    # The API server has no pods that a selector could name.
    - ports:
        {{- range $shared.networkPolicies.apiServerPorts }}
        - {port: {{ int . }}, protocol: TCP}
        {{- end }}
    {{- end }}
    {{- with .egress }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{- define "common.monitoringPeer" -}}
{{- $shared := include "common.shared" . | fromYaml -}}
- namespaceSelector:
    matchLabels:
      kubernetes.io/metadata.name: {{ $shared.networkPolicies.monitoringNamespace }}
{{- end -}}

{{- define "common.dnsEgress" -}}
{{- $shared := include "common.shared" . | fromYaml -}}
- ports:
    {{- range $shared.networkPolicies.dns.ports }}
    - {port: {{ int . }}, protocol: UDP}
    - {port: {{ int . }}, protocol: TCP}
    {{- end }}
  {{- with $shared.networkPolicies.dns.namespace }}
  to:
    - namespaceSelector:
        matchLabels:
          kubernetes.io/metadata.name: {{ . }}
  {{- end }}
{{- end -}}

{{/* NATS and PostgreSQL: the bundled pods, or anywhere on the port of one's own. */}}
{{- define "common.serversEgress" -}}
{{- $shared := include "common.shared" . | fromYaml -}}
{{- if $shared.nats.url }}
- ports:
    {{- range splitList "," $shared.nats.url }}
    {{- $port := regexFind ":[0-9]+/?$" . | trimSuffix "/" | trimPrefix ":" | default "4222" }}
    - {port: {{ $port }}, protocol: TCP}
    {{- end }}
{{- else }}
- to:
    - podSelector:
        matchLabels:
          {{- include "common.selector" (dict "root" . "component" "nats") | nindent 10 }}
  ports:
    - {port: 4222, protocol: TCP}
{{- end }}
{{- if $shared.database.host }}
- ports:
    - {port: {{ $shared.database.port | int }}, protocol: TCP}
{{- else }}
- to:
    - podSelector:
        matchLabels:
          {{- include "common.selector" (dict "root" . "component" "postgres") | nindent 10 }}
  ports:
    - {port: 5432, protocol: TCP}
{{- end }}
{{- end -}}
