{{/*
A service's Deployment. Every template here takes one dictionary, `of`:
  root      the chart's context
  service   the Python package, services.NAME, which is also its role and its bus user
  port      of HTTP
  keys      file name -> key of the Secret of keys, for what it reads beside its two passwords
  env       its own settings, name -> value
  policy    true: the pod policy is mounted
  api       true: it talks to the Kubernetes API, so its token is mounted
  volumes, mounts, recreate, egress, ingress   as in Kubernetes, beyond what every service has
*/}}
{{- define "common.deployment" -}}
{{- $root := .root -}}
{{- $shared := include "common.shared" $root | fromYaml -}}
{{- $prefix := printf "SHIFTWORK_%s_" (upper .service) -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "common.fullname" $root }}
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- include "common.labels" . | nindent 4 }}
spec:
  replicas: {{ $root.Values.replicas | int }}
  # A new pod is Ready only when it reaches its servers: the old one stays until then.
  strategy:
    {{- if .recreate }}
    type: Recreate
    {{- else }}
    type: RollingUpdate
    rollingUpdate:
      maxUnavailable: 0
      maxSurge: 1
    {{- end }}
  revisionHistoryLimit: 3
  selector:
    matchLabels:
      {{- include "common.selector" . | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "common.labels" . | nindent 8 }}
        {{- with $root.Values.pod.labels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      annotations:
        {{- if .policy }}
        shiftwork.dev/pod-policy: {{ include "common.podPolicy" $root | sha256sum | trunc 16 | quote }}
        {{- end }}
        {{- range $name, $text := .files }}
        shiftwork.dev/{{ $name }}: {{ $text | sha256sum | trunc 16 | quote }}
        {{- end }}
        kubectl.kubernetes.io/default-container: {{ $root.Chart.Name }}
        {{- with $root.Values.pod.annotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      serviceAccountName: {{ include "common.fullname" $root }}
      automountServiceAccountToken: {{ .api | default false }}
      # Variables of Services would look like settings of ours.
      enableServiceLinks: false
      terminationGracePeriodSeconds: 30
      securityContext:
        {{- include "common.podSecurity" . | nindent 8 }}
      {{- include "common.podPlace" (dict "root" $root) | nindent 6 }}
      {{- include "common.spread" . | nindent 6 }}
      containers:
        - name: {{ $root.Chart.Name }}
          image: {{ include "common.image" (dict "root" $root "image" $root.Values.image) | quote }}
          imagePullPolicy: {{ $root.Values.image.pullPolicy | default $shared.image.pullPolicy }}
          command: [python, -m, services.{{ .service }}]
          env:
            {{- include "common.connections" (dict "root" $root "prefix" $prefix "service" .service "port" .port) | nindent 12 }}
            {{- $own := dict -}}
            {{- range $name, $value := .env }}
            {{- $_ := set $own $name $value }}
            {{- end }}
            {{- range $name, $value := $root.Values.settings }}
            {{- $_ := set $own $name $value }}
            {{- end }}
            {{- range $name, $value := $own }}
            - name: {{ $prefix }}{{ upper $name }}
              value: {{ kindIs "string" $value | ternary $value (toJson $value) | quote }}
            {{- end }}
          ports:
            - name: http
              containerPort: {{ .port }}
          # Until the schema exists, the process waits for up to 10 minutes and reports it.
          startupProbe:
            httpGet: {path: /healthz, port: http}
            periodSeconds: 2
            failureThreshold: 315
          livenessProbe:
            httpGet: {path: /healthz, port: http}
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 6
          readinessProbe:
            httpGet: {path: /readyz, port: http}
            periodSeconds: 5
            timeoutSeconds: 3
            failureThreshold: 3
          {{- if .lingers }}
          # The last requests come after the end was decided.
          lifecycle:
            preStop:
              sleep: {seconds: 3}
          {{- end }}
          resources:
            {{- toYaml $root.Values.resources | nindent 12 }}
          securityContext:
            {{- include "common.containerSecurity" . | nindent 12 }}
          volumeMounts:
            - name: secrets
              mountPath: /etc/shiftwork/secrets
              readOnly: true
            - name: tmp
              mountPath: /tmp
            {{- if .policy }}
            - name: pod-policy
              mountPath: /etc/shiftwork/pod-policy
              readOnly: true
            {{- end }}
            {{- if $shared.database.caConfigMap }}
            - name: database-ca
              mountPath: /etc/shiftwork/database-ca
              readOnly: true
            {{- end }}
            {{- if $shared.nats.caConfigMap }}
            - name: nats-ca
              mountPath: /etc/shiftwork/nats-ca
              readOnly: true
            {{- end }}
            {{- with .mounts }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
      volumes:
        - name: secrets
          projected:
            defaultMode: 0440
            sources:
              - secret:
                  name: {{ include "common.secret" (dict "root" $root "of" "postgres") }}
                  items: [{key: {{ .service }}, path: database-password}]
              - secret:
                  name: {{ include "common.secret" (dict "root" $root "of" "nats") }}
                  items: [{key: {{ .service }}, path: nats-password}]
              {{- range $path, $key := .keys }}
              - secret:
                  name: {{ include "common.secret" (dict "root" $root "of" "keys") }}
                  items: [{key: {{ $key }}, path: {{ $path }}}]
              {{- end }}
              {{- if and $shared.traces.endpoint $shared.traces.headersSecret }}
              - secret:
                  name: {{ $shared.traces.headersSecret }}
                  items: [{key: headers, path: otlp-headers}]
              {{- end }}
        - name: tmp
          emptyDir: {sizeLimit: 64Mi}
        {{- if .policy }}
        - name: pod-policy
          configMap:
            name: {{ include "common.fullname" $root }}-pod-policy
        {{- end }}
        {{- include "common.authorities" $root | nindent 8 }}
        {{- with .volumes }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
{{- end -}}

{{/* The variables that every service has. Passwords are files. */}}
{{- define "common.connections" -}}
{{- $shared := include "common.shared" .root | fromYaml -}}
- name: {{ .prefix }}DATABASE_URL
  value: {{ include "common.databaseUrl" (dict "root" .root "role" .service) | quote }}
- name: {{ .prefix }}DATABASE_PASSWORD_FILE
  value: /etc/shiftwork/secrets/database-password
- name: {{ .prefix }}NATS_URL
  value: {{ include "common.natsUrl" .root | quote }}
{{- if $shared.nats.caConfigMap }}
- name: {{ .prefix }}NATS_CA_FILE
  value: /etc/shiftwork/nats-ca/ca.crt
{{- end }}
- name: {{ .prefix }}NATS_USER
  value: {{ .service }}
- name: {{ .prefix }}NATS_PASSWORD_FILE
  value: /etc/shiftwork/secrets/nats-password
- name: {{ .prefix }}SCHEMA_WAIT_SECONDS
  value: "600"
- name: {{ .prefix }}HTTP_HOST
  value: 0.0.0.0
- name: {{ .prefix }}HTTP_PORT
  value: {{ .port | quote }}
- name: {{ .prefix }}LOG_FORMAT
  value: {{ $shared.logFormat }}
- name: {{ .prefix }}LOG_LEVEL
  value: {{ $shared.logLevel }}
{{- if $shared.traces.endpoint }}
- name: {{ .prefix }}OTLP_ENDPOINT
  value: {{ $shared.traces.endpoint | quote }}
- name: {{ .prefix }}TRACE_RATIO
  value: {{ $shared.traces.ratio | quote }}
{{- if $shared.traces.headersSecret }}
- name: {{ .prefix }}OTLP_HEADERS_FILE
  value: /etc/shiftwork/secrets/otlp-headers
{{- end }}
{{- end }}
{{- end -}}

{{/* The authorities that vouch for servers of one's own. */}}
{{- define "common.authorities" -}}
{{- $shared := include "common.shared" . | fromYaml -}}
{{- with $shared.database.caConfigMap }}
- name: database-ca
  configMap:
    name: {{ . }}
{{- end }}
{{- with $shared.nats.caConfigMap }}
- name: nats-ca
  configMap:
    name: {{ . }}
{{- end }}
{{- end -}}

{{- define "common.serviceAccount" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "common.fullname" .root }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "common.labels" . | nindent 4 }}
automountServiceAccountToken: false
{{- end -}}

{{/* One of two may be taken away at a time; with a single replica a drain of its node goes on. */}}
{{- define "common.disruption" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "common.fullname" .root }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "common.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "common.selector" . | nindent 6 }}
{{- end -}}

{{- define "common.service" -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ include "common.fullname" .root }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "common.labels" . | nindent 4 }}
spec:
  type: ClusterIP
  selector:
    {{- include "common.selector" . | nindent 4 }}
  ports:
    - name: http
      port: {{ .port }}
      targetPort: http
{{- end -}}

{{- define "common.serviceMonitor" -}}
{{- $shared := include "common.shared" .root | fromYaml -}}
{{- if $shared.monitoring.enabled -}}
apiVersion: monitoring.coreos.com/v1
kind: ServiceMonitor
metadata:
  name: {{ include "common.fullname" .root }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "common.labels" . | nindent 4 }}
    {{- with $shared.monitoring.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  selector:
    matchLabels:
      {{- include "common.selector" . | nindent 6 }}
  endpoints:
    - port: http
      path: /metrics
      # `service` is a label of ours.
      honorLabels: true
      interval: {{ $shared.monitoring.interval }}
{{- end -}}
{{- end -}}

{{- define "common.podPolicyMap" -}}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ include "common.fullname" .root }}-pod-policy
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "common.labels" . | nindent 4 }}
data:
  policy.yaml: |
    {{- include "common.podPolicy" .root | nindent 4 }}
{{- end -}}

{{/* All of it. What a chart has beyond this stands in files of its own. */}}
{{- define "common.all" -}}
{{- $shared := include "common.shared" .root | fromYaml -}}
{{ include "common.serviceAccount" . }}
---
{{ include "common.deployment" . }}
---
{{ include "common.service" . }}
---
{{ include "common.disruption" . }}
{{- if .policy }}
---
{{ include "common.podPolicyMap" . }}
{{- end }}
{{- if $shared.networkPolicies.enabled }}
---
{{ include "common.networkPolicy" . }}
{{- end }}
{{- if $shared.monitoring.enabled }}
---
{{ include "common.serviceMonitor" . }}
{{- end }}
{{- end -}}
