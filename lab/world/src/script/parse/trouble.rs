//! Parses what a script breaks and mends.

use std::collections::BTreeMap;

use http::StatusCode;
use jiff::SignedDuration;
use refit_kinds::refit::Receiver;

use super::{
    super::{
        command::{Action, How, Place, Trouble, Wrong, wrong},
        k8sd,
        rest::Rest,
    },
    STEPS, process,
};
use crate::{provider::Misbehaviour, receivers::Refuses};

const TROUBLES: &str = "host, disk, node, agent, api, streams, requests, answers, latency, view, link, \
                        clock, provider, alert, query, prometheus, alertmanager, silence, receiver, \
                        update-server, k8sd or journal";
const API: &str = "management or CLUSTER";

pub(super) fn trouble(rest: &mut Rest<'_>) -> Result<Action, Wrong> {
    let trouble = match rest.peek().unwrap_or_default() {
        "host" => return step_trouble(rest),
        "k8sd" => return k8sd_trouble(rest),
        "streams" => Trouble::Streams(rest.named("streams", API)?),
        "requests" => {
            let api = rest.named("requests", API)?;
            let code = rest.next("CODE")?.text.as_str();
            let valid = code.parse().ok().filter(|code| (400..600).contains(code));
            let code = valid.ok_or_else(|| wrong("status", code, "a status from 400 to 599"))?;
            let resource = rest.skip("of").then(|| rest.next("RESOURCE")).transpose()?;
            let resource = resource.map(|word| word.text.clone());
            Trouble::Requests { api, code, resource, times: rest.times()? }
        }
        "answers" => {
            let api = rest.named("answers", API)?;
            Trouble::Answers { api, times: rest.times()? }
        }
        "journal" => Trouble::Journal(rest.named("journal", "NODE")?),
        _ => Trouble::Place(place(rest)?),
    };
    if let Trouble::Place(Place::Latency(_, by) | Place::Clock(_, by)) = &trouble
        && by.is_zero()
    {
        return Err(wrong("break", "the end of the line", "TIME"));
    }
    if let Trouble::Place(Place::Provider(None)) = &trouble {
        return Err(wrong("break", "the end of the line", "ready, passes, flips or slow"));
    }
    let time = match &trouble {
        Trouble::Place(Place::View(..)) => {
            let time = rest.optional_time("for")?;
            Some(time.ok_or_else(|| wrong("break view", "the end of the line", "for TIME"))?)
        }
        Trouble::Place(Place::Host(_) | Place::Disk(_))
        | Trouble::Step { .. }
        | Trouble::Streams(_)
        | Trouble::Requests { .. }
        | Trouble::Answers { .. }
        | Trouble::Refresh { .. }
        | Trouble::Journal(_) => None,
        Trouble::Place(_) => rest.optional_time("for")?,
    };
    Ok(Action::Break(trouble, time))
}

fn k8sd_trouble(rest: &mut Rest<'_>) -> Result<Action, Wrong> {
    let node = rest.named("k8sd", "NODE")?;
    if rest.skip("off") {
        let time = rest.optional_time("for")?;
        return Ok(Action::Break(Trouble::Place(Place::K8sd(node)), time));
    }
    let word = &rest.next(k8sd::FAILURES)?.text;
    let how = word.parse().map_err(|_| wrong("break k8sd", word, k8sd::FAILURES))?;
    let times = if rest.is_over() { 1 } else { rest.times()? };
    Ok(Action::Break(Trouble::Refresh { node, how, times }, None))
}

fn step_trouble(rest: &mut Rest<'_>) -> Result<Action, Wrong> {
    let node = rest.named("host", "NODE")?;
    if !rest.skip("step") {
        let got = rest.peek().unwrap_or("the end of the line");
        return Err(wrong("break host", got, "step STEP"));
    }
    let step = rest.next("STEP")?.text.clone();
    if !STEPS.contains(&step.as_str()) {
        return Err(wrong("step", step, STEPS.join(", ")));
    }
    let how = if rest.skip("hang") {
        How::Hangs(rest.times()?)
    } else if rest.skip("slow") {
        How::Slow(rest.number("N")?)
    } else {
        How::Fails(rest.times()?)
    };
    Ok(Action::Break(Trouble::Step { node, step, how }, None))
}

pub(super) fn place(rest: &mut Rest<'_>) -> Result<Place, Wrong> {
    let kind = rest.next(TROUBLES)?.text.clone();
    let name = |rest: &mut Rest<'_>, what| rest.next(what).map(|word| word.text.clone());
    Ok(match kind.as_str() {
        "host" => Place::Host(name(rest, "NODE")?),
        "disk" => Place::Disk(name(rest, "NODE")?),
        "node" => Place::Node(name(rest, "NODE")?),
        "agent" => Place::Agent(name(rest, "NODE")?),
        "k8sd" => Place::K8sd(name(rest, "NODE")?),
        "api" => Place::Api(name(rest, API)?),
        "latency" => {
            let api = name(rest, API)?;
            let delay = if rest.is_over() { SignedDuration::ZERO } else { rest.time("TIME")? };
            Place::Latency(api, delay)
        }
        "link" => Place::Link(process(rest)?, name(rest, API)?),
        "clock" => Place::Clock(process(rest)?, step_of_clock(rest)?),
        "provider" => Place::Provider(misbehaviour(rest)?),
        "alert" => Place::Alert(name(rest, "NAME")?, labels(rest)?),
        "query" => Place::Query(name(rest, "TEXT")?),
        "prometheus" => Place::Prometheus,
        "receiver" => receiver(rest)?,
        "update-server" => Place::UpdateServer,
        "alertmanager" => Place::Alertmanager,
        "silence" => Place::Silence(name(rest, "TEXT")?),
        "view" => {
            let word = name(rest, "KIND or CLUSTER:KIND")?;
            match word.split_once(':') {
                Some((cluster, kind)) => Place::View(Some(cluster.to_owned()), kind.to_owned()),
                None => Place::View(None, word),
            }
        }
        other => return Err(wrong("trouble", other, TROUBLES)),
    })
}

/// The labels of an alert, up to the time; by default it is critical.
pub(in crate::script) fn labels(rest: &mut Rest<'_>) -> Result<BTreeMap<String, String>, Wrong> {
    let mut labels = BTreeMap::from([("severity".to_owned(), "critical".to_owned())]);
    while let Some(word) = rest.peek().filter(|word| *word != "for") {
        let pair = word.split_once('=');
        let (label, value) = pair.ok_or_else(|| wrong("break alert", word, "LABEL=VALUE"))?;
        labels.insert(label.to_owned(), value.to_owned());
        rest.next("LABEL=VALUE")?;
    }
    Ok(labels)
}

/// `NAME`, and the status with which it answers.
fn receiver(rest: &mut Rest<'_>) -> Result<Place, Wrong> {
    let word = &rest.next("cloudevents or slack")?.text;
    let receiver = match word.as_str() {
        "cloudevents" => Receiver::CloudEvents,
        "slack" => Receiver::Slack,
        other => return Err(wrong("receiver", other, "cloudevents or slack")),
    };
    let Some(code) = rest.peek().filter(|word| *word != "for") else {
        return Ok(Place::Receiver(receiver, Refuses::Answer));
    };
    let status = code.parse().ok().filter(|status: &StatusCode| status.as_u16() >= 300);
    let status = status.ok_or_else(|| wrong("status", code, "a status from 300"))?;
    rest.next("CODE")?;
    Ok(Place::Receiver(receiver, Refuses::With(status)))
}

/// How a provider misbehaves; nothing after `mend`.
fn misbehaviour(rest: &mut Rest<'_>) -> Result<Option<Misbehaviour>, Wrong> {
    let Some(word) = rest.peek() else { return Ok(None) };
    let how = word.parse().ok();
    let how = how.ok_or_else(|| wrong("break provider", word, "ready, passes, flips or slow"))?;
    rest.next("HOW")?;
    Ok(Some(how))
}

/// `TIME ahead` or `TIME behind`; nothing after `mend`.
fn step_of_clock(rest: &mut Rest<'_>) -> Result<SignedDuration, Wrong> {
    if rest.is_over() {
        return Ok(SignedDuration::ZERO);
    }
    let time = rest.time("TIME")?;
    let word = rest.next("ahead or behind")?;
    match word.text.as_str() {
        "ahead" => Ok(time),
        "behind" => Ok(-time),
        other => Err(wrong("break clock", other, "ahead or behind")),
    }
}
