{{/* The objects of one file of deploy/, changed according to the values. */}}
{{- define "knit.file" -}}
{{- $root := .root -}}
{{- range $part := splitList "\n---\n" (.root.Files.Get .path | replace "pod-network-operator" .root.Values.namespace.name) }}
{{- $object := fromYaml $part }}
{{- if hasKey $object "Error" }}{{ fail (printf "%s: %s" $.path $object.Error) }}{{ end }}
{{- include "knit.label" (dict "root" $root "object" $object) }}
{{- if eq $object.kind "DaemonSet" }}
{{- if eq $root.Values.profile "primary" }}
{{- include "knit.patch" (dict "object" $object "patch" (fromYaml ($root.Files.Get "files/primary/agent.patch.yaml"))) }}
{{- end }}
{{- include "knit.workload" (dict "root" $root "object" $object "values" $root.Values.agent) }}
{{- $container := first $object.spec.template.spec.containers }}
{{- $address := dict "name" "KNIT_METRICS_ADDR" "value" $root.Values.agent.metricsAddress }}
{{- $_ := set $container "env" (append $container.env $address) }}
{{- else if eq $object.kind "Deployment" }}
{{- if eq $root.Values.profile "primary" }}
{{- include "knit.patch" (dict "object" $object "patch" (fromYaml ($root.Files.Get "files/primary/controller.patch.yaml"))) }}
{{- end }}
{{- include "knit.workload" (dict "root" $root "object" $object "values" $root.Values.controller) }}
{{- $_ := set $object.spec "replicas" (int $root.Values.controller.replicas) }}
{{- else if and (eq $object.kind "ConfigMap") $root.Values.primary.config }}
{{- $config := mergeOverwrite (fromYaml (index $object.data "agent.yaml")) $root.Values.primary.config }}
{{- $_ := set $object.data "agent.yaml" (toYaml $config) }}
{{- end }}
{{- if or (ne $object.kind "Namespace") $root.Values.namespace.create }}
---
{{ toYaml $object }}
{{- end }}
{{- end }}
{{- end }}

{{/* The common labels. */}}
{{- define "knit.labels" -}}
app.kubernetes.io/part-of: knit
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "knit.label" -}}
{{- $labels := fromYaml (include "knit.labels" .root) }}
{{- $_ := set .object.metadata "labels" (merge (default dict .object.metadata.labels) $labels) }}
{{- end }}

{{/* A strategic merge patch of a workload like kustomize: `env` is merged by name, volumes and mounts are added, and other
fields are replaced. */}}
{{- define "knit.patch" -}}
{{- $spec := .object.spec.template.spec }}
{{- $container := first $spec.containers }}
{{- range $key, $news := .patch.spec.template.spec }}
{{- if eq $key "volumes" }}{{ $_ := set $spec $key (concat $news (default list $spec.volumes)) }}
{{- else if ne $key "containers" }}{{ $_ := set $spec $key $news }}
{{- end }}
{{- end }}
{{- range $key, $news := first .patch.spec.template.spec.containers }}
{{- if eq $key "volumeMounts" }}{{ $_ := set $container $key (concat $news (default list $container.volumeMounts)) }}
{{- else if eq $key "env" }}
{{- $names := dict }}
{{- range $news }}{{ $_ := set $names .name true }}{{ end }}
{{- $all := $news }}
{{- range $container.env }}{{ if not (hasKey $names .name) }}{{ $all = append $all . }}{{ end }}{{ end }}
{{- $_ := set $container $key $all }}
{{- else }}{{ $_ := set $container $key $news }}
{{- end }}
{{- end }}
{{- end }}

{{/* Image, resources and node selector of a workload with one container. */}}
{{- define "knit.workload" -}}
{{- $image := .root.Values.image }}
{{- $container := first .object.spec.template.spec.containers }}
{{- $_ := set $container "image" (printf "%s:%s" $image.repository (default .root.Chart.AppVersion $image.tag)) }}
{{- $_ := set $container "imagePullPolicy" $image.pullPolicy }}
{{- if .values.resources }}{{ $_ := set $container "resources" .values.resources }}{{ end }}
{{- if .values.nodeSelector }}{{ $_ := set .object.spec.template.spec "nodeSelector" .values.nodeSelector }}{{ end }}
{{- end }}
