//! What providers do with their objects: as the contract wants it, or not.

use refit_kinds::refit::{Gate, ProviderObject, Stage};

use super::world::Report;

/// A provider does what it may.
pub(super) fn works(object: &mut ProviderObject) {
    let status = &mut object.status;
    let has_failed = is_final(status) && object.spec.stage == Stage::Ongoing;
    if has_failed || status.ready && status.observed_generation == Some(object.generation) {
        return;
    }
    status.observed_generation = Some(object.generation);
    status.failure_reason.clear();
    if object.spec.stage == Stage::Abort && !status.past_no_return {
        status.ready = true;
        return;
    }
    status.passed = object.spec.gate;
    status.ready = object.spec.gate == Gate::Disrupt;
}

/// A provider reports something.
pub(super) fn report(object: &mut ProviderObject, report: Report) {
    let status = &mut object.status;
    // What has ended stays so: afterwards nothing looks at it any more.
    if status.observed_generation == Some(object.generation) && (status.ready || is_final(status)) {
        return;
    }
    if report.is_new {
        status.observed_generation = Some(object.generation);
    }
    status.passed = report.passed;
    status.ready = report.ready;
    status.past_no_return = report.past_no_return;
    status.failure_reason = report.fails.map_or("", |_| "Broken").to_owned();
    status.retriable = report.fails == Some(true);
}

fn is_final(status: &refit_kinds::refit::ProviderStatus) -> bool {
    !status.failure_reason.is_empty() && !status.retriable
}

/// Whether a provider may disturb its machine and has not reported its end.
pub(super) fn is_busy(object: &ProviderObject) -> bool {
    let status = &object.status;
    let passed = status.passed.min(object.spec.gate);
    let aborts = object.spec.stage == Stage::Abort;
    let is_ready = status.ready && (aborts || passed == Gate::Disrupt);
    let has_ended = object.is_observed() && (is_ready || is_final(status));
    object.spec.gate >= Gate::Upgrade && !has_ended
}
