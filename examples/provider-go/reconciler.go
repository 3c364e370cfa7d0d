package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// pollInterval is how often a host is looked at while something is to be done.
const pollInterval = 5 * time.Second

// Reconciler brings hosts to versions. It keeps nothing in memory: it looks at the host each time.
type Reconciler struct {
	client.Client
	// Live reads Machines past the cache, which needs only the permission `get`.
	Live client.Reader
}

// Reconcile does the next step of one upgrade, and reports how far it is.
func (r *Reconciler) Reconcile(ctx context.Context, upgrade *HostUpgrade) (ctrl.Result, error) {
	before, status := upgrade.DeepCopy(), &upgrade.Status
	status.ObservedGeneration = upgrade.Generation
	var result ctrl.Result
	var kubernetesError error
	if !isIdle(before) {
		result.RequeueAfter = pollInterval
		status.Failure = Failure{}
		if err := r.act(ctx, upgrade); err != nil && !errors.As(err, &status.Failure) {
			// An operator reads it in the object. Returned, it has controller-runtime back off.
			status.Failure = Failure{"KubernetesError", err.Error(), true}
			result, kubernetesError = ctrl.Result{}, err
		}
	}
	if equality.Semantic.DeepEqual(before.Status, *status) {
		return result, kubernetesError
	}
	// If Refit has changed the object in the meantime, the patch fails and the new order is read first.
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := r.Status().Patch(ctx, upgrade, patch); err != nil {
		return ctrl.Result{}, err
	}
	return result, kubernetesError
}

// isIdle reports whether there is nothing to do until Refit changes the object.
func isIdle(upgrade *HostUpgrade) bool {
	status := upgrade.Status
	switch {
	case status.Ready:
		return true
	case status.Reason != "" && !status.Retriable:
		// Such a failure is the end of the work.
		return true
	default:
		return !aborts(upgrade) && gateOrder[status.Passed] >= gateOrder[upgrade.Spec.Gate]
	}
}

// aborts reports whether the upgrade is to stop. An object that is being deleted counts as such.
func aborts(upgrade *HostUpgrade) bool {
	return upgrade.Spec.Stage == StageAbort || !upgrade.DeletionTimestamp.IsZero()
}

// act looks at the Machine and its host, and then does what step decides.
func (r *Reconciler) act(ctx context.Context, upgrade *HostUpgrade) error {
	ref, node, goal := upgrade.Spec.MachineRef, upgrade.Spec.NodeName, upgrade.Spec.Goal
	machine := &metav1.PartialObjectMetadata{}
	machine.APIVersion, machine.Kind = "cluster.x-k8s.io/v1beta2", "Machine"
	err := r.Live.Get(ctx, client.ObjectKey{Namespace: upgrade.Namespace, Name: ref.Name}, machine)
	isGone := apierrors.IsNotFound(err) || err == nil && string(machine.UID) != ref.UID
	switch {
	case isGone && aborts(upgrade):
		// Nothing is left to undo, and the Node of that name may belong to another Machine by now.
		upgrade.Status.Ready = true
		return nil
	case isGone:
		return Failure{"MachineGone", fmt.Sprintf("Machine %s with uid %s does not exist", ref.Name, ref.UID), false}
	case err != nil:
		return err
	case goal.KubernetesVersion == "" && !aborts(upgrade):
		return Failure{"NoVersion", "the Machine has no Kubernetes version: set spec.version of its owner", false}
	}
	hosts := Hosts{URL: upgrade.Spec.URL}
	host, err := hosts.Look(ctx, node)
	if err != nil {
		return err
	}
	switch step(upgrade, host) {
	case callPrepare:
		err = hosts.Prepare(ctx, node, goal.KubernetesVersion)
	case callDiscard:
		err = hosts.Discard(ctx, node)
	case callUpgrade:
		err = hosts.Upgrade(ctx, node, goal.KubernetesVersion, goal.Role)
	}
	var failure Failure
	if errors.As(err, &failure) && !failure.Retriable && host.Prepared != "" {
		upgrade.Status.LeftBehind = []string{"The download of " + host.Prepared + " is still on the host."}
	}
	return err
}

// call is what the API that changes hosts is asked to do.
type call string

const (
	callNothing call = ""
	callPrepare call = "prepare"
	callDiscard call = "discard"
	callUpgrade call = "upgrade"
)

// step decides what comes next for a host that looks like this, and notes in the status what is done.
func step(upgrade *HostUpgrade, host Host) call {
	status, gate, goal := &upgrade.Status, upgrade.Spec.Gate, upgrade.Spec.Goal.KubernetesVersion
	isDone := host.Version == goal && host.Underway == ""
	progress := func(percent int32, message string) {
		status.Progress = ProviderProgress{Percent: percent, Message: message}
	}
	switch {
	case host.Underway != "":
		// Nothing stops it any more, so this comes before an abort.
		progress(50, "upgrading the host to "+host.Underway)
	case isDone && gate == GateDisrupt:
		progress(100, "")
		status.Passed, status.Ready = gate, true
	case aborts(upgrade) && host.Prepared != "":
		return callDiscard
	case aborts(upgrade):
		status.Ready = true
	case gate != GateDisrupt && !isDone && host.Prepared != goal:
		progress(0, "downloading "+goal)
		return callPrepare
	case gate != GateDisrupt:
		progress(10, "")
		status.Passed = gate
	case !status.PastNoReturn:
		// Written before the first change that cannot be undone: the next look starts the upgrade.
		status.PastNoReturn = true
	default:
		progress(20, "starting the upgrade to "+goal)
		return callUpgrade
	}
	return callNothing
}
