//! Upgrades by annotation, as the simulated user requests them.

#[cfg(feature = "sabotage")]
use refit_kinds::canonical::{CertificateKeys, REFIT};
use refit_kinds::{
    canonical::Keys,
    json::{annotation, kind, name},
};
use serde_json::{Value, json};

#[cfg(feature = "sabotage")]
use super::status::is_worker;
use super::{World, collection};
use crate::{
    direct::{Call, Direct, DirectError, USER},
    script::look::owners,
};

impl World {
    /// Requests an option of all owners of Machines of a kind: a control plane's, or `MachineDeployment`.
    pub(crate) async fn annotate_owners(
        &self,
        of_kind: &str,
        keys: Keys,
        option: &str,
    ) -> Result<(), DirectError> {
        let api = Direct::new(self.management().clone(), USER);
        for owner in owners(self).iter().filter(|owner| kind(owner) == of_kind) {
            let Some(collection) = collection(self.management(), owner) else { continue };
            let body = json!({"metadata": {"annotations": {keys.upgrade_to: option}}});
            api.send(Call::merge(format!("{collection}/{}", name(owner)), body)).await?;
        }
        Ok(())
    }

    /// Requests new certificates for the first Machine of the control plane and of the workers.
    #[cfg(feature = "sabotage")]
    pub(crate) async fn ask_for_certificates(&self) -> Result<(), DirectError> {
        let api = Direct::new(self.management().clone(), USER);
        let machines = self.machines();
        for workers in [false, true] {
            let Some(machine) = machines.iter().find(|machine| is_worker(machine) == workers)
            else {
                continue;
            };
            let Some(collection) = collection(self.management(), machine) else { continue };
            let body = json!({"metadata": {"annotations": {REFIT.certificates.refresh: "1y"}}});
            api.send(Call::merge(format!("{collection}/{}", name(machine)), body)).await?;
        }
        Ok(())
    }

    /// Whether all certificates that were requested are issued.
    #[cfg(feature = "sabotage")]
    pub(crate) fn certificates_are_issued(&self) -> bool {
        let CertificateKeys { refresh, status, .. } = REFIT.certificates;
        let machines = self.machines();
        let mut asked = machines.iter().filter(|machine| {
            annotation(machine, refresh).is_some() || annotation(machine, status).is_some()
        });
        asked.all(|machine| {
            annotation(machine, refresh).is_none() && annotation(machine, status) == Some("done")
        })
    }

    /// Whether all owners of a kind show that their Machines have an option.
    pub(crate) fn owners_show(&self, of_kind: &str, keys: Keys, option: &str) -> bool {
        let shows = |owner: &Value| {
            annotation(owner, keys.release) == Some(option)
                && annotation(owner, keys.status) == Some("done")
                && annotation(owner, keys.upgrade_to).is_none()
        };
        owners(self).iter().filter(|owner| kind(owner) == of_kind).all(shows)
    }
}
