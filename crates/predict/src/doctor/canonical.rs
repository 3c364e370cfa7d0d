//! Who serves the annotations of Canonical's providers (`docs/annotations.md`).

use refit_kinds::canonical::CANONICAL;

use super::{CanonicalMode, Facts, Findings};
use crate::reach::Read;

const OBJECT: &str = "Annotations of Canonical's providers";
const HAND_OVER: &str =
    "see docs/annotations.md, \"From Canonical's controllers to Refit, and back\"";

pub(super) fn check(facts: &Facts, found: &mut Findings) {
    let managers = match &facts.canonical_managers {
        Read::Known(managers) => managers,
        Read::Unknown(why) => {
            found.unknown("the managers of Canonical's providers", why);
            return;
        }
    };
    // A controller that cannot be read, or is not there, is a finding of its own.
    let mode = match &facts.controller {
        Read::Known(Some(controller)) => controller.canonical,
        Read::Known(None) | Read::Unknown(_) => CanonicalMode::Off,
    };
    let (key, requests) = (CANONICAL.upgrade_to, facts.canonical_requests);
    match mode {
        CanonicalMode::Off if requests > 0 && managers.is_empty() => found.warn(
            OBJECT,
            format!("{requests} objects have annotations such as {key}, which neither Refit nor Canonical's controllers serve"),
            "start the controller with --canonical ControllersAbsent, or use the annotations of refit.dev/",
        ),
        CanonicalMode::On if requests > 0 => found.warn(
            OBJECT,
            format!("{requests} objects have annotations such as {key}: with --canonical On, Refit leaves them to Canonical's controllers"),
            HAND_OVER,
        ),
        CanonicalMode::ControllersAbsent if !managers.is_empty() => found.warn(
            OBJECT,
            format!(
                "Refit serves annotations such as {key}, and so may {}: two controllers may upgrade the same Machine",
                managers.join(", ")
            ),
            "scale these Deployments to 0, or see that they are built without the controllers of in-place upgrades",
        ),
        CanonicalMode::Off | CanonicalMode::On | CanonicalMode::ControllersAbsent => {}
    }
    let by = match mode {
        CanonicalMode::Off if requests > 0 => "requested, and served by Canonical's controllers",
        CanonicalMode::Off | CanonicalMode::On => "not served by Refit, and not requested",
        CanonicalMode::ControllersAbsent => "served by Refit alone",
    };
    found.or_ok(OBJECT, by.to_owned());
}
