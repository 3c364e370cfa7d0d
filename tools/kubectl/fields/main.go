// Command fields prints the protocol buffer layout of the kinds that kubectl sends: for each type
// its fields with number, JSON name and type. The API server of the sandbox reads the table.
//
//	go run ./fields > ../../lab/apiserver/src/protobuf/fields.txt
package main

import (
	"bufio"
	"fmt"
	"os"
	"reflect"
	"slices"
	"sort"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubectl/pkg/scheme"
)

// The kinds that the API server accepts, by group and version.
var kinds = map[string]string{
	"admissionregistration.k8s.io/v1": "ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding",
	"apps/v1":                         "DaemonSet Deployment ReplicaSet StatefulSet",
	"authentication.k8s.io/v1":        "SelfSubjectReview TokenRequest TokenReview",
	"authorization.k8s.io/v1":         "LocalSubjectAccessReview SelfSubjectAccessReview SelfSubjectRulesReview SubjectAccessReview",
	"autoscaling/v1":                  "Scale",
	"coordination.k8s.io/v1":          "Lease",
	"events.k8s.io/v1":                "Event",
	"networking.k8s.io/v1":            "NetworkPolicy",
	"policy/v1":                       "Eviction PodDisruptionBudget",
	"rbac.authorization.k8s.io/v1":    "ClusterRole ClusterRoleBinding Role RoleBinding",
	"storage.k8s.io/v1":               "VolumeAttachment",
	"v1":                              "ConfigMap Event Namespace Node PersistentVolumeClaim Pod Secret Service ServiceAccount",
}

// Types whose JSON differs from the layout of their message.
var special = map[string]string{
	"k8s.io/apimachinery/pkg/api/resource.Quantity":   "quantity",
	"k8s.io/apimachinery/pkg/apis/meta/v1.Duration":   "duration",
	"k8s.io/apimachinery/pkg/apis/meta/v1.FieldsV1":   "json",
	"k8s.io/apimachinery/pkg/apis/meta/v1.MicroTime":  "microtime",
	"k8s.io/apimachinery/pkg/apis/meta/v1.Time":       "time",
	"k8s.io/apimachinery/pkg/runtime.RawExtension":    "json",
	"k8s.io/apimachinery/pkg/util/intstr.IntOrString": "intstr",
	"k8s.io/api/authentication/v1.ExtraValue":         "strings",
	"k8s.io/api/authorization/v1.ExtraValue":          "strings",
}

// The types that are still to be printed, and all types found so far.
var (
	open []reflect.Type
	seen = map[reflect.Type]bool{}
)

func full(t reflect.Type) string { return t.PkgPath() + "." + t.Name() }

func name(t reflect.Type) string {
	words := strings.Split(t.PkgPath(), "/")
	if len(words) > 2 {
		words = words[len(words)-2:]
	}
	return strings.Join(words, ".") + "." + t.Name()
}

func layout(t reflect.Type) string {
	if word, ok := special[full(t)]; ok {
		return word
	}
	switch t.Kind() {
	case reflect.Pointer:
		return layout(t.Elem())
	case reflect.String:
		return "string"
	case reflect.Bool:
		return "bool"
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint32, reflect.Uint64:
		return "int"
	case reflect.Float64:
		return "double"
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "bytes"
		}
		return "[]" + layout(t.Elem())
	case reflect.Map:
		return "{}" + layout(t.Elem())
	case reflect.Struct:
		if !seen[t] {
			seen[t] = true
			open = append(open, t)
		}
		return name(t)
	}
	panic("no layout for " + t.String())
}

func lines(t reflect.Type) []string {
	var all []string
	for i := range t.NumField() {
		field := t.Field(i)
		tag := strings.Split(field.Tag.Get("protobuf"), ",")
		if len(tag) < 2 {
			continue
		}
		label, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		if label == "" {
			label = "-"
		}
		// The message contains the field even if it is not set; JSON omits it.
		flag := "="
		if strings.Contains(options, "omitempty") && field.Type.Kind() != reflect.Pointer {
			flag = "?"
		}
		all = append(all, fmt.Sprintf("%s%s %s %s", tag[1], flag, label, layout(field.Type)))
	}
	return all
}

func main() {
	var roots []string
	for kind, t := range scheme.Scheme.AllKnownTypes() {
		if slices.Contains(strings.Fields(kinds[kind.GroupVersion().String()]), kind.Kind) {
			roots = append(roots, fmt.Sprintf("kind %s/%s %s", kind.GroupVersion(), kind.Kind, layout(t)))
		}
	}
	roots = append(roots, "kind DeleteOptions "+layout(reflect.TypeFor[metav1.DeleteOptions]()))
	sort.Strings(roots)
	types := map[string][]string{}
	for len(open) > 0 {
		t := open[0]
		open = open[1:]
		types[name(t)] = lines(t)
	}
	names := make([]string, 0, len(types))
	for name := range types {
		names = append(names, name)
	}
	sort.Strings(names)
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	fmt.Fprintln(out, "# Written by tools/kubectl/fields. Do not edit.")
	for _, root := range roots {
		fmt.Fprintln(out, root)
	}
	for _, name := range names {
		fmt.Fprintln(out, "type", name)
		for _, line := range types[name] {
			fmt.Fprintln(out, line)
		}
	}
}
