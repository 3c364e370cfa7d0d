#!/bin/sh
# Gives Cluster API's managers the client certificate with which they call Refit's hooks. The namespaces and
# Deployments are those of clusterctl. docs/install.md describes when to run it again.
set -eu

# A pod cannot mount a Secret of another namespace, so each manager gets a copy, without the authority's key.
template='apiVersion: v1
kind: Secret
metadata:
  name: refit-hook-client
  labels:
    app.kubernetes.io/name: refit
type: kubernetes.io/tls
data:
  tls.crt: {{index .data "tls.crt"}}
  tls.key: {{index .data "tls.key"}}
'
for namespace in capi-system capi-kubeadm-control-plane-system; do
  kubectl -n refit-system get secret refit-hook-client -o go-template="$template" |
    kubectl -n "$namespace" apply --server-side --field-manager=refit -f -
done

# The managers restart with the certificate, and read it again when the copy changes. Volumes and mounts merge by their
# names; a flag is added only where it is missing, for example after the manager's own manifest was applied again.
mount=/etc/refit-hook-client
volume='{"spec": {"template": {"spec": {
  "volumes": [{"name": "refit-hook-client", "secret": {"secretName": "refit-hook-client"}}],
  "containers": [{"name": "manager", "volumeMounts": [
    {"name": "refit-hook-client", "mountPath": "/etc/refit-hook-client", "readOnly": true}
  ]}]
}}}}'
patch_manager() {
  kubectl -n "$1" patch deployment "$2" --type=strategic --patch "$volume"
  index=0
  for name in $(kubectl -n "$1" get deployment "$2" -o jsonpath='{.spec.template.spec.containers[*].name}'); do
    if [ "$name" = manager ]; then break; fi
    index=$((index + 1))
  done
  manager="/spec/template/spec/containers/$index"
  flags=$(kubectl -n "$1" get deployment "$2" -o jsonpath="{.spec.template.spec.containers[$index].args}")
  add=
  for flag in --runtime-extension-client-cert-file=$mount/tls.crt --runtime-extension-client-key-file=$mount/tls.key; do
    case "$flags" in
      *"$flag"*) ;;
      *) add="$add, {\"op\": \"add\", \"path\": \"$manager/args/-\", \"value\": \"$flag\"}" ;;
    esac
  done
  if [ -n "$add" ]; then
    kubectl -n "$1" patch deployment "$2" --type=json \
      --patch "[{\"op\": \"test\", \"path\": \"$manager/name\", \"value\": \"manager\"}$add]"
  fi
}
patch_manager capi-system capi-controller-manager
patch_manager capi-kubeadm-control-plane-system capi-kubeadm-control-plane-controller-manager
