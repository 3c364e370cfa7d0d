//! What Trident says of a host, and what that means for an image that is wanted
//! (`spec/node.md 1.7`, `1.8`).

use refit_kinds::refit::OsImageArgs;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::host::work::WorkError;

/// State of Trident's servicing, as it writes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Servicing {
    /// The host was not installed by Trident.
    #[default]
    NotProvisioned,
    /// An installation is written.
    CleanInstallStaged,
    /// An installation is what boots next.
    CleanInstallFinalized,
    /// A change without reboot is prepared.
    RuntimeUpdateStaged,
    /// An image is written to the volumes that do not run.
    AbUpdateStaged,
    /// That image is what boots next.
    AbUpdateFinalized,
    /// The new image did not pass its checks; the old one is about to boot again.
    AbUpdateHealthCheckFailed,
    /// Going back is prepared.
    ManualRollbackAbStaged,
    /// The older image is what boots next.
    ManualRollbackAbFinalized,
    /// Going back without reboot is prepared.
    ManualRollbackRuntimeStaged,
    /// Nothing is under way.
    Provisioned,
}

/// What Trident says of a host; what we do not use of it is left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostStatus {
    /// How far servicing is.
    #[serde(default)]
    pub servicing_state: Servicing,
    /// The configuration. After staging it is the new one already: never what runs.
    #[serde(default)]
    pub spec: Value,
    /// The configuration before the one that is under way.
    #[serde(default)]
    pub spec_old: Value,
    /// Why the last operation failed.
    #[serde(default)]
    pub last_error: Option<Value>,
    /// Which volume runs: `volume-a` or `volume-b`.
    #[serde(default)]
    pub ab_active_volume: Option<String>,
    /// Version of Trident.
    #[serde(default)]
    pub trident_version: Option<String>,
}

impl HostStatus {
    /// Reads what `trident get status` answers.
    pub fn parse(text: &str) -> Result<Self, WorkError> {
        serde_saphyr::from_str(text).map_err(|error| {
            WorkError::needs_person(format!(
                "`trident get status` answers what this agent cannot read: {error}; is Trident too new?"
            ))
        })
    }

    /// sha384 of the image in the configuration.
    pub fn image(&self) -> Option<&str> {
        self.spec.get("image")?.get("sha384")?.as_str()
    }

    /// The last error in a few words.
    pub fn error(&self) -> Option<String> {
        let error = self.last_error.as_ref().filter(|error| !error.is_null())?;
        let word = |name: &str| error.get(name).and_then(Value::as_str);
        let parts: Vec<&str> =
            ["category", "error", "message"].into_iter().filter_map(word).collect();
        Some(if parts.is_empty() { error.to_string() } else { parts.join(": ") })
    }
}

/// What was true before the image was staged; kept with the plan's snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Before {
    /// The volume that ran.
    #[serde(default)]
    pub active_volume: Option<String>,
    /// sha384 of the image that ran.
    #[serde(default)]
    pub image: Option<String>,
    /// The boot in which the image was made the next to boot; empty until then.
    #[serde(default)]
    pub finalized_in: String,
}

/// Where a host stands on its way to an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Situation {
    /// Trident does not manage the host.
    NotManaged,
    /// Nothing is under way, and the host has another image.
    NeedsUpdate,
    /// The image is written.
    Staged,
    /// Another image is written.
    OtherStaged,
    /// The image is what boots next, but the host has not booted.
    AwaitsBoot,
    /// The host has booted, and nobody has committed yet.
    AwaitsCommit,
    /// The new image failed, and the old one is about to boot.
    RollingBack,
    /// The image runs and stays.
    Done,
    /// The old image runs again.
    RolledBack {
        /// Why.
        error: String,
    },
    /// Something of somebody else is under way.
    Busy {
        /// What.
        what: Servicing,
    },
}

/// Where a host stands. Trident's state alone cannot tell a host that waits for its boot from one
/// that waits for its commit, nor a rollback from a host that never began: what was true before
/// tells.
pub(crate) fn situation(
    status: &HostStatus,
    wanted: &OsImageArgs,
    before: Option<&Before>,
    boot_id: &str,
) -> Situation {
    let ours = status.image().is_some_and(|image| image.eq_ignore_ascii_case(&wanted.sha384));
    match status.servicing_state {
        Servicing::NotProvisioned => Situation::NotManaged,
        Servicing::AbUpdateStaged if ours => Situation::Staged,
        Servicing::AbUpdateStaged => Situation::OtherStaged,
        Servicing::AbUpdateFinalized if !ours => Situation::Busy { what: status.servicing_state },
        Servicing::AbUpdateFinalized => {
            let booted = before.is_some_and(|before| {
                !before.finalized_in.is_empty() && before.finalized_in != boot_id
            });
            if booted { Situation::AwaitsCommit } else { Situation::AwaitsBoot }
        }
        Servicing::AbUpdateHealthCheckFailed => Situation::RollingBack,
        Servicing::Provisioned => provisioned(status, ours, before),
        what @ (Servicing::CleanInstallStaged
        | Servicing::CleanInstallFinalized
        | Servicing::RuntimeUpdateStaged
        | Servicing::ManualRollbackAbStaged
        | Servicing::ManualRollbackAbFinalized
        | Servicing::ManualRollbackRuntimeStaged) => Situation::Busy { what },
    }
}

fn provisioned(status: &HostStatus, ours: bool, before: Option<&Before>) -> Situation {
    let error = status.error();
    let finalized = before.is_some_and(|before| !before.finalized_in.is_empty());
    if ours {
        let flipped = before.is_none_or(|before| {
            !finalized
                || before.active_volume.is_none()
                || before.active_volume != status.ab_active_volume
        });
        return if flipped {
            Situation::Done
        } else {
            Situation::RolledBack {
                error: error.unwrap_or_else(|| "the same volume runs as before".to_owned()),
            }
        };
    }
    match (finalized, error) {
        (true, error) => Situation::RolledBack {
            error: error.unwrap_or_else(|| "the host booted the image of before".to_owned()),
        },
        (false, _) => Situation::NeedsUpdate,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted() -> OsImageArgs {
        OsImageArgs {
            url: "https://images.example/new.cosi".to_owned(),
            sha384: "bb".repeat(48),
            ..OsImageArgs::default()
        }
    }

    fn status(state: &str, image: &str, volume: &str, error: &str) -> HostStatus {
        HostStatus::parse(&format!(
            "servicingState: {state}\nspec: {{image: {{url: x, sha384: '{}'}}}}\n\
             abActiveVolume: {volume}\nlastError: {error}\nsomethingNew: [1]\n",
            image.repeat(48)
        ))
        .unwrap()
    }

    fn before(finalized_in: &str) -> Before {
        Before {
            active_volume: Some("volume-a".to_owned()),
            image: Some("aa".repeat(48)),
            finalized_in: finalized_in.to_owned(),
        }
    }

    #[test]
    fn every_state_means_one_thing() {
        let rolled_back = |error: &str| Situation::RolledBack { error: error.to_owned() };
        let busy = |what| Situation::Busy { what };
        let error = "{category: servicing, error: AbUpdateRebootCheck, message: booted old root}";
        for (state, image, volume, error, finalized_in, expected) in [
            ("provisioned", "aa", "volume-a", "null", "", Situation::NeedsUpdate),
            // An error of an older operation is no rollback of this one.
            ("provisioned", "aa", "volume-a", error, "", Situation::NeedsUpdate),
            ("ab-update-staged", "bb", "volume-a", "null", "", Situation::Staged),
            ("ab-update-staged", "cc", "volume-a", "null", "", Situation::OtherStaged),
            ("ab-update-finalized", "bb", "volume-a", "null", "boot-2", Situation::AwaitsBoot),
            ("ab-update-finalized", "bb", "volume-a", "null", "boot-1", Situation::AwaitsCommit),
            (
                "ab-update-finalized",
                "cc",
                "volume-a",
                "null",
                "",
                busy(Servicing::AbUpdateFinalized),
            ),
            (
                "ab-update-health-check-failed",
                "bb",
                "volume-b",
                error,
                "boot-1",
                Situation::RollingBack,
            ),
            ("provisioned", "bb", "volume-b", "null", "boot-1", Situation::Done),
            (
                "provisioned",
                "aa",
                "volume-a",
                error,
                "boot-1",
                rolled_back("servicing: AbUpdateRebootCheck: booted old root"),
            ),
            (
                "provisioned",
                "aa",
                "volume-a",
                "null",
                "boot-1",
                rolled_back("the host booted the image of before"),
            ),
            ("not-provisioned", "aa", "volume-a", "null", "", Situation::NotManaged),
            (
                "manual-rollback-ab-staged",
                "aa",
                "volume-a",
                "null",
                "",
                busy(Servicing::ManualRollbackAbStaged),
            ),
        ] {
            let status = status(state, image, volume, error);
            let found = situation(&status, &wanted(), Some(&before(finalized_in)), "boot-2");
            assert_eq!(found, expected, "{state} {image} {finalized_in}");
        }
    }

    #[test]
    fn a_host_that_has_the_image_already_is_done_without_a_plan_of_before() {
        let status = status("provisioned", "BB", "volume-a", "null");
        assert_eq!(situation(&status, &wanted(), None, "boot-1"), Situation::Done);
    }

    #[test]
    fn an_answer_that_cannot_be_read_is_for_a_person() {
        let error = HostStatus::parse("servicingState: teleported\n").unwrap_err();
        assert!(error.message.contains("too new"), "{error}");
    }
}
