//! Whether Cluster API's managers present a client certificate that Refit accepts.

use refit_core::certificates::CLIENT;

use super::{ClientAuth, Facts, Findings, checks::CONTROLLER};
use crate::reach::Read;

const REMEDY: &str = "refit install --for managers prints the commands";

pub(super) fn check(facts: &Facts, found: &mut Findings) {
    let auth = match &facts.controller {
        Read::Known(Some(workload)) => workload.client_auth,
        Read::Known(None) | Read::Unknown(_) => ClientAuth::Secret,
    };
    if auth == ClientAuth::Off {
        let message = "it serves hooks without client certificates: every client that reaches it \
            can call them"
            .to_owned();
        let remedy = "give the managers their certificate (refit install --for managers), then \
            remove --hook-client-auth=Off";
        return found.warn(CONTROLLER, message, remedy);
    }
    let managers = match &facts.managers {
        Read::Known(managers) => managers,
        Read::Unknown(why) => return found.unknown("Deployments of Cluster API", why),
    };
    for manager in managers.iter().filter(|manager| !manager.missing_flags.is_empty()) {
        let message = format!(
            "it lacks {}: Refit refuses its hook calls, and its rollouts wait",
            manager.missing_flags.join(" and ")
        );
        found.fail(&format!("Deployment/{}", manager.deployment), message, REMEDY);
    }
    if auth == ClientAuth::Secret {
        copies(facts, found);
    }
    found.or_ok("client certificates", "Cluster API's managers present one".to_owned());
}

fn copies(facts: &Facts, found: &mut Findings) {
    let copies = match &facts.client_copies {
        Read::Known(copies) => copies,
        Read::Unknown(why) => return found.unknown("copies of Secret refit-hook-client", why),
    };
    for copy in copies {
        let object = format!("Secret/{}/{}", copy.namespace, copy.name);
        match &copy.leaf {
            Err(why) => found.fail(&object, format!("cannot read its certificate: {why}"), REMEDY),
            Ok(leaf) if leaf.until <= facts.now => {
                found.fail(&object, format!("its certificate expired at {}", leaf.until), REMEDY);
            }
            Ok(_) if !copy.trusted => {
                let message = "its certificate is not of an authority in Secret \
                    refit-system/refit-hook-client"
                    .to_owned();
                found.fail(&object, message, REMEDY);
            }
            Ok(leaf) if leaf.until.duration_since(facts.now) < CLIENT.leaf_renew_before => {
                let message =
                    format!("its certificate expires at {}: copy the renewed one", leaf.until);
                found.warn(&object, message, REMEDY);
            }
            Ok(_) => {}
        }
    }
}
