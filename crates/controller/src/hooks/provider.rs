//! Asks the provider of an infrastructure machine whether it accepts what Updaters claim of it.

use std::time::Duration;

use refit_core::change::{
    NotReady, Objects, Provider, Question as Change, Verdict, can_update::Judgement,
};
use refit_runtime::foreign::ForeignObject;

use super::can_update::Question;
use crate::{api_error::cause, context::Context};

/// How long the read and the dry run may take: Cluster API waits for 10 s.
const DEADLINE: Duration = Duration::from_secs(5);

/// The provider's answer about the claimed changes, if the verdict depends on that.
pub(super) async fn ask(
    ctx: &Context,
    question: &Question,
    judgement: &Judgement,
    current: &Objects,
) -> Provider {
    let depends = matches!(judgement.verdict, Verdict::NotReady(NotReady::ProviderUnknown { .. }));
    let change = Change::of(question.level, &judgement.coverage, current).filter(|_| depends);
    let Some(change) = change else {
        return Provider::NotAsked;
    };
    // Without machines, no object changes.
    let Some(machine) = &question.infrastructure else {
        return change.accepted;
    };
    let object = ForeignObject {
        group: change.group.clone(),
        version: Some(change.version.clone()),
        kind: machine.kind.clone(),
        namespace: question.group.key.namespace.clone(),
        name: machine.name.clone(),
    };
    let asked = ctx.foreign.dry_run(&ctx.client, &object, |live| change.changed(live));
    match tokio::time::timeout(DEADLINE, asked).await {
        Ok(Ok(true)) => change.accepted,
        Ok(Ok(false)) => {
            Provider::Unknown { why: "its lists differ from those that were compared".to_owned() }
        }
        Ok(Err(kube::Error::Api(status))) => Provider::of_error(status.code, &status.message),
        Ok(Err(error)) => Provider::Unknown { why: cause(&error) },
        Err(_) => {
            let seconds = DEADLINE.as_secs();
            Provider::Unknown { why: format!("no response within {seconds} s") }
        }
    }
}
