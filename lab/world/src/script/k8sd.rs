//! Failures of k8sd and of the snap that it refreshes.

use std::sync::Arc;

use lab_simhost::k8sd::{ChangeEnd, K8sd, Reach, RefreshReply, RefreshScript};
use strum::{Display, EnumString};

use super::{
    command::{Wrong, wrong},
    session::Session,
};
use crate::world::lock;

/// The failures that `break k8sd` knows, for messages.
pub(super) const FAILURES: &str = "fails, undone, hold, lost, rejected, forgets or off";
/// The most refreshes that one command lets fail.
const MOST: u32 = 100;

/// How a refresh misbehaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Display, EnumString)]
#[strum(serialize_all = "kebab-case")]
pub(crate) enum Refresh {
    /// The change fails.
    Fails,
    /// The change is rolled back.
    Undone,
    /// The change is aborted before it does anything.
    Hold,
    /// The change begins, but the answer with its id is lost.
    Lost,
    /// The request is rejected.
    Rejected,
    /// The ids of all changes so far are forgotten.
    Forgets,
}

impl Refresh {
    fn script(self, usual: RefreshScript) -> Option<RefreshScript> {
        let text = || "snap \"k8s\" cannot be refreshed".to_owned();
        Some(match self {
            Self::Fails => RefreshScript { end: ChangeEnd::Error(text()), ..usual },
            Self::Undone => RefreshScript { end: ChangeEnd::Undone, ..usual },
            Self::Hold => RefreshScript { end: ChangeEnd::Hold, ..usual },
            Self::Lost => RefreshScript { reply: RefreshReply::Lost, ..usual },
            Self::Rejected => RefreshScript { reply: RefreshReply::Fails(text()), ..usual },
            Self::Forgets => return None,
        })
    }

    fn sentence(self) -> &'static str {
        match self {
            Self::Fails => "fails",
            Self::Undone => "is rolled back",
            Self::Hold => "is aborted at its begin",
            Self::Lost => "begins without an answer",
            Self::Rejected => "is rejected",
            Self::Forgets => "is forgotten",
        }
    }
}

/// Lets the next refreshes of a node misbehave; returns the output line.
pub(super) fn misbehave(
    session: &Session,
    node: &str,
    how: Refresh,
    times: u32,
) -> Result<String, Wrong> {
    let k8sd = of_node(session, node)?;
    let Some(script) = how.script(k8sd.usual()) else {
        k8sd.forget_changes();
        return Ok(format!("snapd of {node} has forgotten its changes"));
    };
    if times > MOST {
        return Err(wrong("times", times.to_string(), format!("at most {MOST} refreshes")));
    }
    for _ in 0..times {
        k8sd.script(script.clone());
    }
    let next = if times == 1 {
        "the next refresh".to_owned()
    } else {
        format!("each of {times} refreshes")
    };
    Ok(format!("{next} of {node} {}", how.sentence()))
}

/// Stops k8sd of a node.
pub(super) fn stop(session: &Session, node: &str) -> Result<String, Wrong> {
    of_node(session, node)?.set_reach(Reach::HangsUp);
    Ok(format!("k8sd of {node} does not answer"))
}

/// Starts k8sd of a node, whose next refreshes work.
pub(super) fn mend(session: &Session, node: &str) -> Result<String, Wrong> {
    let k8sd = of_node(session, node)?;
    k8sd.clear_scripts();
    k8sd.set_reach(Reach::Up);
    Ok(format!("k8sd of {node} works"))
}

fn of_node(session: &Session, node: &str) -> Result<Arc<K8sd>, Wrong> {
    let real = session.names.real(node);
    let hosts = lock(&session.world.inner.hosts);
    let found = hosts.iter().find(|(key, _)| key.rsplit('/').next() == Some(real.as_str()));
    let k8sd = found.and_then(|(_, host)| host.k8sd.clone());
    k8sd.ok_or_else(|| {
        wrong("k8sd", node, "a node that has booted, of a CK8sControlPlane or with a CK8sConfig")
    })
}
