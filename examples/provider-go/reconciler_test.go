package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

const (
	from = "v1.34.2"
	goal = "v1.35.0"
)

func upgradeAt(gate Gate, stage string, status ProviderStatus) *HostUpgrade {
	upgrade := &HostUpgrade{ObjectMeta: metav1.ObjectMeta{Name: "u", Namespace: "default", Generation: 2}, Status: status}
	upgrade.Spec.MachineRef = MachineRef{Name: "m", UID: "1"}
	upgrade.Spec.NodeName, upgrade.Spec.Gate, upgrade.Spec.Stage = "node", gate, stage
	upgrade.Spec.Goal = ProviderGoal{KubernetesVersion: goal, Role: "Worker"}
	return upgrade
}

func TestStep(t *testing.T) {
	tests := []struct {
		name   string
		gate   Gate
		stage  string
		status ProviderStatus
		host   Host
		call   call
		want   ProviderStatus
	}{
		{name: "the gate Stage downloads",
			gate: GateStage, host: Host{Version: from}, call: callPrepare},
		{name: "another version is not the wanted one",
			gate: GateStage, host: Host{Version: from, Prepared: "v1.34.9"}, call: callPrepare},
		{name: "a download passes the gate Stage",
			gate: GateStage, host: Host{Version: from, Prepared: goal}, want: ProviderStatus{Passed: GateStage}},
		{name: "the gate Upgrade is passed at once",
			gate: GateUpgrade, status: ProviderStatus{Passed: GateStage}, host: Host{Version: from, Prepared: goal},
			want: ProviderStatus{Passed: GateUpgrade}},
		{name: "a host that has the version needs no download",
			gate: GateStage, host: Host{Version: goal}, want: ProviderStatus{Passed: GateStage}},
		{name: "pastNoReturn is noted before the upgrade",
			gate: GateDisrupt, status: ProviderStatus{Passed: GateUpgrade}, host: Host{Version: from, Prepared: goal},
			want: ProviderStatus{Passed: GateUpgrade, PastNoReturn: true}},
		{name: "the upgrade begins after that",
			gate: GateDisrupt, status: ProviderStatus{Passed: GateUpgrade, PastNoReturn: true},
			host: Host{Version: from, Prepared: goal}, call: callUpgrade,
			want: ProviderStatus{Passed: GateUpgrade, PastNoReturn: true}},
		{name: "an upgrade is waited for",
			gate: GateDisrupt, status: ProviderStatus{Passed: GateUpgrade, PastNoReturn: true},
			host: Host{Version: from, Underway: goal}, want: ProviderStatus{Passed: GateUpgrade, PastNoReturn: true}},
		{name: "a host with the version is ready",
			gate: GateDisrupt, status: ProviderStatus{Passed: GateUpgrade, PastNoReturn: true}, host: Host{Version: goal},
			want: ProviderStatus{Passed: GateDisrupt, PastNoReturn: true, Ready: true}},
		{name: "an abort discards the download",
			gate: GateUpgrade, stage: StageAbort, status: ProviderStatus{Passed: GateUpgrade},
			host: Host{Version: from, Prepared: goal}, call: callDiscard, want: ProviderStatus{Passed: GateUpgrade}},
		{name: "an abort ends once nothing is left",
			gate: GateUpgrade, stage: StageAbort, status: ProviderStatus{Passed: GateUpgrade}, host: Host{Version: from},
			want: ProviderStatus{Passed: GateUpgrade, Ready: true}},
		{name: "an abort past the point of no return stops what has not begun",
			gate: GateDisrupt, stage: StageAbort, status: ProviderStatus{Passed: GateUpgrade, PastNoReturn: true},
			host: Host{Version: from}, want: ProviderStatus{Passed: GateUpgrade, PastNoReturn: true, Ready: true}},
		{name: "an abort waits for an upgrade that runs",
			gate: GateDisrupt, stage: StageAbort, status: ProviderStatus{Passed: GateUpgrade, PastNoReturn: true},
			host: Host{Version: from, Underway: goal}, want: ProviderStatus{Passed: GateUpgrade, PastNoReturn: true}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			upgrade := upgradeAt(test.gate, test.stage, test.status)
			if got := step(upgrade, test.host); got != test.call {
				t.Errorf("call %q, want %q", got, test.call)
			}
			got := upgrade.Status
			if got.Passed != test.want.Passed || got.Ready != test.want.Ready || got.PastNoReturn != test.want.PastNoReturn {
				t.Errorf("status %+v, want %+v", got, test.want)
			}
		})
	}
}

func TestIsIdle(t *testing.T) {
	final := Failure{Reason: "HostRefused", Message: "no"}
	tests := []struct {
		name   string
		gate   Gate
		stage  string
		status ProviderStatus
		want   bool
	}{
		{"a closed gate allows nothing", "Closed", "", ProviderStatus{}, true},
		{"an open gate is worked on", GateStage, "", ProviderStatus{}, false},
		{"a passed gate is waited at", GateStage, "", ProviderStatus{Passed: GateStage}, true},
		{"the next gate is worked on", GateUpgrade, "", ProviderStatus{Passed: GateStage}, false},
		{"an abort is carried out at a passed gate", GateStage, StageAbort, ProviderStatus{Passed: GateStage}, false},
		{"ready is the end", GateStage, StageAbort, ProviderStatus{Ready: true}, true},
		{"a retriable failure is tried again", GateStage, "", ProviderStatus{Failure: Failure{"X", "x", true}}, false},
		{"a final failure stays", GateStage, "", ProviderStatus{Failure: final}, true},
		{"an abort changes nothing about a final failure", GateStage, StageAbort, ProviderStatus{Failure: final}, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := isIdle(upgradeAt(test.gate, test.stage, test.status)); got != test.want {
				t.Errorf("idle is %v, want %v", got, test.want)
			}
		})
	}
}

// service is a host service with one host.
type service struct {
	host   Host
	calls  []string
	status int
	text   string
}

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.status != 0 {
		http.Error(w, s.text, s.status)
		return
	}
	if r.Method == http.MethodGet {
		_ = json.NewEncoder(w).Encode(s.host)
		return
	}
	s.calls = append(s.calls, r.Method+" "+r.URL.Path)
	switch r.Method + " " + r.URL.Path {
	case "PUT /hosts/node/prepared":
		s.host.Prepared = goal
	case "DELETE /hosts/node/prepared":
		s.host.Prepared = ""
	case "PUT /hosts/node/version":
		s.host.Version = goal
	}
}

// reconciled reconciles one object a few times, each time as a provider that was just started.
func reconciled(t *testing.T, upgrade *HostUpgrade, hosts *service, machineUID string) HostUpgrade {
	t.Helper()
	server := httptest.NewServer(hosts)
	defer server.Close()
	upgrade.Spec.URL = server.URL
	cluster := clusterWith(upgrade, machineUID).Build()
	var found HostUpgrade
	for range 5 {
		if err := cluster.Get(context.Background(), client.ObjectKeyFromObject(upgrade), &found); err != nil {
			t.Fatal(err)
		}
		reconciler := &Reconciler{Client: cluster, Live: cluster}
		if _, err := reconciler.Reconcile(context.Background(), found.DeepCopy()); err != nil {
			t.Fatal(err)
		}
	}
	if err := cluster.Get(context.Background(), client.ObjectKeyFromObject(upgrade), &found); err != nil {
		t.Fatal(err)
	}
	return found
}

// clusterWith has an object and its Machine, whose uid may be another one.
func clusterWith(upgrade *HostUpgrade, machineUID string) *fake.ClientBuilder {
	scheme := runtime.NewScheme()
	AddToScheme(scheme)
	machine := &metav1.PartialObjectMetadata{}
	machine.APIVersion, machine.Kind = "cluster.x-k8s.io/v1beta2", "Machine"
	machine.Name, machine.Namespace, machine.UID = "m", "default", "1"
	scheme.AddKnownTypeWithName(machine.GroupVersionKind(), machine)
	if machineUID != "" {
		machine.SetUID("2")
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(upgrade).WithObjects(upgrade, machine)
}

// An error of the API server is returned, and is in the status as well, unless it is about the status.
func TestKubernetesErrors(t *testing.T) {
	resource := schema.GroupResource{Group: "cluster.x-k8s.io", Resource: "machines"}
	forbidden := apierrors.NewForbidden(resource, "m", errors.New("no permission"))
	conflict := apierrors.NewConflict(resource, "u", errors.New("it was changed"))
	tests := []struct {
		name       string
		get, patch error
		want       Failure
	}{
		{"a forbidden get of the Machine is reported", forbidden, nil, Failure{"KubernetesError", forbidden.Error(), true}},
		{"a conflict of the status is not", nil, conflict, Failure{}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			server := httptest.NewServer(&service{host: Host{Version: from}})
			defer server.Close()
			upgrade := upgradeAt(GateStage, "", ProviderStatus{Progress: ProviderProgress{Percent: 1}})
			upgrade.Spec.URL = server.URL
			funcs := interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, found client.Object, _ ...client.GetOption) error {
					if _, isMachine := found.(*metav1.PartialObjectMetadata); isMachine && test.get != nil {
						return test.get
					}
					return c.Get(ctx, key, found)
				},
				SubResourcePatch: func(ctx context.Context, c client.Client, _ string, found client.Object, patch client.Patch, _ ...client.SubResourcePatchOption) error {
					if test.patch != nil {
						return test.patch
					}
					return c.Status().Patch(ctx, found, patch)
				},
			}
			cluster := clusterWith(upgrade, "").WithInterceptorFuncs(funcs).Build()
			var found HostUpgrade
			read := func() {
				if err := cluster.Get(context.Background(), client.ObjectKeyFromObject(upgrade), &found); err != nil {
					t.Fatal(err)
				}
			}
			read()
			result, err := (&Reconciler{Client: cluster, Live: cluster}).Reconcile(context.Background(), found.DeepCopy())
			if err == nil || result != (ctrl.Result{}) {
				t.Errorf("result %+v, error %v: want an error alone", result, err)
			}
			read()
			if found.Status.Failure != test.want {
				t.Errorf("failure %+v, want %+v", found.Status.Failure, test.want)
			}
		})
	}
}

func TestReconcile(t *testing.T) {
	t.Run("a failure that passed is cleared, and the host is upgraded once", func(t *testing.T) {
		hosts := &service{host: Host{Version: from, Prepared: goal}}
		status := ProviderStatus{Passed: GateUpgrade, Failure: Failure{"HostsNotReachable", "no answer", true}}
		found := reconciled(t, upgradeAt(GateDisrupt, "", status), hosts, "")
		if !found.Status.Ready || found.Status.Failure != (Failure{}) || found.Status.ObservedGeneration != 2 {
			t.Errorf("status %+v", found.Status)
		}
		if len(hosts.calls) != 1 {
			t.Errorf("calls %v", hosts.calls)
		}
	})
	failures := []struct {
		name       string
		hosts      service
		machineUID string
		want       Failure
	}{
		{"a refusal is final", service{status: 409, text: "frozen"}, "",
			Failure{"HostRefused", "GET of host node: frozen", false}},
		{"an error of the service is not", service{status: 503}, "",
			Failure{"HostsNotReachable", "GET of host node: 503 Service Unavailable", true}},
		{"another Machine of the name is not touched", service{}, "2",
			Failure{"MachineGone", "Machine m with uid 1 does not exist", false}},
	}
	for _, test := range failures {
		t.Run(test.name, func(t *testing.T) {
			found := reconciled(t, upgradeAt(GateStage, "", ProviderStatus{}), &test.hosts, test.machineUID)
			if found.Status.Failure != test.want || len(test.hosts.calls) != 0 {
				t.Errorf("failure %+v, want %+v; calls %v", found.Status.Failure, test.want, test.hosts.calls)
			}
		})
	}
}
