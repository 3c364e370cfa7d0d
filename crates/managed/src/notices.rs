//! Sends notifications, and notes in the history that they were sent.

use jiff::Timestamp;
use refit_openshift::{
    cluster_version::{began, has_commenced},
    config::{Config, ProviderConfig, Source},
    notify::{
        Delivery, Event, LogEvent, Posting, Receiver, deliveries, is_needless, is_posted, log_line,
        note_posting, note_sent, policy, policy_write, posting, service_log,
    },
    provider::{Cluster, OcmUrl},
};

use crate::{
    context::Context,
    record::{Record, Stored},
    remote::Ocm,
};

/// Sends the notifications of a look.
pub(crate) struct Notifier<'a> {
    pub(crate) ctx: &'a Context,
    pub(crate) config: &'a Config,
    /// The feature gate `ServiceLogNotification`.
    pub(crate) has_service_log: bool,
    pub(crate) now: Timestamp,
}

impl Notifier<'_> {
    /// Sends a notification about an upgrade, and notes that.
    pub(crate) async fn send(
        &self,
        record: &mut Record,
        (event, text): (Event, &str),
    ) -> anyhow::Result<Stored> {
        let source = self.config.provider()?.map(|ProviderConfig { source, .. }| source);
        let delivered = match source {
            Some(Source::Ocm(url)) => self.deliver(&url, record, (event, text)).await?,
            Some(Source::Local) | None => {
                for _ in deliveries(self.ctx.compat, Receiver::Log, event) {
                    tracing::info!("{}", log_line(event, text));
                }
                Stored::Yes
            }
        };
        match delivered {
            Stored::Changed => Ok(Stored::Changed),
            Stored::Yes => {
                let (compat, now) = (self.ctx.compat, self.now);
                record.amend(self.ctx, |entry| note_sent(compat, entry, event, text, now)).await
            }
        }
    }

    async fn deliver(
        &self,
        url: &OcmUrl,
        record: &mut Record,
        (event, text): (Event, &str),
    ) -> anyhow::Result<Stored> {
        let receiver = Receiver::Ocm { service_log: self.has_service_log };
        let due = deliveries(self.ctx.compat, receiver, event);
        if due.is_empty() {
            return Ok(Stored::Yes);
        }
        let version = self.ctx.cluster_version().await?;
        let has_commenced =
            has_commenced(&version, &record.upgrade.spec.desired).unwrap_or_default();
        let desired = record.entry.version.clone();
        let commenced = began(&version, &desired, self.ctx.compat).filter(|_| has_commenced);
        let ocm = self.ctx.remote.ocm(url, &version.spec.cluster_id).await?;
        let cluster = ocm.cluster().await?;
        for delivery in due {
            match delivery {
                Delivery::Log => tracing::info!("{}", log_line(event, text)),
                Delivery::ServiceLog(event) => {
                    let to = (&ocm, &cluster);
                    if self.post(to, record, commenced, (event, text)).await? == Stored::Changed {
                        return Ok(Stored::Changed);
                    }
                }
                Delivery::PolicyState => {
                    let to = (&ocm, &cluster);
                    self.set_state(to, record, has_commenced, (event, text)).await?;
                }
            }
        }
        Ok(Stored::Yes)
    }

    /// Posts an entry of the service log, unless it is there.
    async fn post(
        &self,
        (ocm, cluster): (&Ocm, &Cluster),
        record: &mut Record,
        commenced: Option<Timestamp>,
        (event, text): (LogEvent, &str),
    ) -> anyhow::Result<Stored> {
        let compat = self.ctx.compat;
        let is_noted = match posting(compat, (event, text), Some(&record.entry), commenced) {
            Posting::Post => false,
            Posting::NoteAndPost => true,
            Posting::LookUp(note) => {
                if is_posted(&note, &ocm.logs(cluster, event).await?) {
                    return Ok(Stored::Yes);
                }
                true
            }
        };
        if is_noted {
            let note = |entry: &mut _| note_posting(entry, event, text, self.now);
            if record.amend(self.ctx, note).await? == Stored::Changed {
                return Ok(Stored::Changed);
            }
        }
        ocm.post_log(&service_log(event, text, &cluster.id, ocm.client())).await?;
        Ok(Stored::Yes)
    }

    /// Sets the state of the policy of an upgrade, if it may follow the present one.
    async fn set_state(
        &self,
        (ocm, cluster): (&Ocm, &Cluster),
        record: &Record,
        has_commenced: bool,
        (event, text): (Event, &str),
    ) -> anyhow::Result<()> {
        let spec = &record.upgrade.spec;
        let policies = ocm.policies(cluster).await?;
        let version = spec.desired.version.as_deref().unwrap_or_default();
        let id = match policy(&policies, version, &spec.upgrade_at) {
            Ok(policy) => &policy.id,
            Err(error) if is_needless(self.ctx.compat, &error, has_commenced) => {
                tracing::warn!(%event, %error, "the upgrade goes on without its policy");
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        let present = ocm.state(cluster, id).await?;
        if let Some(write) = policy_write(self.ctx.compat, &present, event, text.to_owned())? {
            ocm.set_state(cluster, id, write.value, &write.description).await?;
        }
        Ok(())
    }
}
