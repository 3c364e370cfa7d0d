//! Whether the API server refuses what would replace machines, as the labels of namespaces ask it to.

use refit_core::change::asked::opted_in;
use refit_kinds::{keys, refit::REPLACEMENT_HOLD};

use super::{Facts, Findings, Namespace};
use crate::reach::Read;

const NAMESPACES: &str = "Namespaces";

pub(super) fn check(facts: &Facts, found: &mut Findings) {
    let label = format!("{}={}", keys::HOLD_REPLACEMENTS, keys::OPTED_IN);
    // Those that cannot be read have a separate check.
    let Read::Known(namespaces) = &facts.namespaces else {
        return found.unknown(NAMESPACES, "they are unknown");
    };
    let held: Vec<&Namespace> = namespaces.iter().filter(|one| is_held(one)).collect();
    if held.is_empty() && !namespaces.is_empty() {
        let message = format!(
            "no namespace with Clusters has the label {label}: Cluster API replaces some machines \
             without calling Refit"
        );
        let names: Vec<&str> = namespaces.iter().map(|one| one.name.as_str()).collect();
        let remedy = format!("kubectl label namespace {} {label}", names.join(" "));
        return found.warn(NAMESPACES, message, &remedy);
    }
    if !held.is_empty() {
        policies(facts, found);
    }
    for namespace in &held {
        let object = format!("Namespace/{}", namespace.name);
        if matches!(&namespace.labels, Read::Known(labels) if !opted_in(labels)) {
            let message = format!(
                "it has the label {label}, but lacks {}={}: its machines are neither updated in \
                 place nor replaced",
                keys::IN_PLACE,
                keys::OPTED_IN
            );
            found.warn(&object, message, "set the latter, or remove the former");
        }
        callers(facts, &namespace.name, found);
    }
    let count = namespaces.len();
    let message = format!("replacements are held in {} of {count} with Clusters", held.len());
    found.or_ok(NAMESPACES, message);
}

fn is_held(namespace: &Namespace) -> bool {
    let Read::Known(labels) = &namespace.labels else { return false };
    labels.get(keys::HOLD_REPLACEMENTS).map(String::as_str) == Some(keys::OPTED_IN)
}

fn policies(facts: &Facts, found: &mut Findings) {
    match &facts.missing_hold_policies {
        Read::Unknown(why) => found.unknown("ValidatingAdmissionPolicies", why),
        Read::Known(missing) => {
            for object in missing {
                let message = "it does not exist: no replacement is refused".to_owned();
                found.fail(object, message, "refit install --only rbac --apply");
            }
        }
    }
}

/// Whether a namespace has its ReplacementHold, with the users of Cluster API's managers.
fn callers(facts: &Facts, namespace: &str, found: &mut Findings) {
    let object = format!("ReplacementHold/{namespace}/{REPLACEMENT_HOLD}");
    let holds = match &facts.replacement_holds {
        Read::Known(holds) => holds,
        Read::Unknown(why) => return found.unknown(&object, why),
    };
    let Some(callers) = holds.get(namespace) else {
        let message = "it does not exist: the API server refuses every request to create or \
            delete a Machine there"
            .to_owned();
        let remedy = format!(
            "check refit-controller, which creates it; or kubectl label namespace {namespace} {}-",
            keys::HOLD_REPLACEMENTS
        );
        return found.fail(&object, message, &remedy);
    };
    // Managers that cannot be read have a separate check.
    let Read::Known(managers) = &facts.managers else { return };
    for manager in managers.iter().filter(|one| !callers.contains(&one.user)) {
        let message = format!(
            "spec.callers lacks {}, as which Deployment/{} runs: its requests are not held",
            manager.user, manager.deployment
        );
        let remedy = "add it to --hold-callers of the controller";
        found.warn(&object, message, remedy);
    }
}
