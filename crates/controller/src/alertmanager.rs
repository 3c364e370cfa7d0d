//! Writes silences to Alertmanager (`docs/facts/alertmanager.md`).

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use http::{Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use jiff::{SignedDuration, Timestamp};
use kube::{Client, client::Body};
use refit_core::{
    gates::GatedCluster,
    managed::silences::{Replaced, SilenceOutcome, SilenceWish, SilenceWrite},
};
use refit_kinds::refit::{AlertMatcher, MatchType};
use refit_runtime::{
    Clock,
    client::{ClientStack, too_large},
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{Settings, api_error::cause};

/// How long a request may take.
const DEADLINE: Duration = Duration::from_secs(5);
/// Maximum size of an answer.
const MAX_ANSWER: usize = 4 << 20;
/// For how long an Alertmanager that does not answer is not asked again.
const SILENT_FOR: SignedDuration = SignedDuration::from_secs(15);
/// How many characters of an answer a message shows.
const MAX_SHOWN: usize = 200;
/// Who creates the silences.
const CREATED_BY: &str = "refit";
const SILENCES: &str = "/api/v2/silences";

/// The Alertmanager of the settings.
pub(crate) struct Alertmanager {
    client: Result<Client, String>,
    /// What each silence has besides its own matchers.
    matchers: Vec<AlertMatcher>,
    clock: Clock,
    /// Until when it is not asked again, and why.
    rests: Mutex<Option<(Timestamp, String)>>,
}

/// A silence in an answer.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Found {
    id: String,
    status: FoundStatus,
    created_by: String,
    comment: String,
    starts_at: Timestamp,
    ends_at: Timestamp,
}

#[derive(Clone, Debug, Deserialize)]
struct FoundStatus {
    state: FoundState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum FoundState {
    Pending,
    Active,
    Expired,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Created {
    #[serde(rename = "silenceID")]
    silence_id: String,
}

impl Alertmanager {
    /// Of the settings; without them, every write fails.
    pub(crate) fn new(stack: &ClientStack, clock: Clock, settings: &Settings) -> Self {
        let client = match &settings.alertmanager {
            Some(config) => stack
                .clone()
                .with_max_answer(MAX_ANSWER)
                .client(config)
                .map_err(|error| format!("the settings of Alertmanager are not valid: {error}")),
            None => Err("no Alertmanager is configured: set --alertmanager-url of the controller"
                .to_owned()),
        };
        let matchers = settings.silence_matchers.clone();
        Self { client, matchers, clock, rests: Mutex::default() }
    }

    /// Makes a write for a Cluster, unless its outcome is there already.
    pub(crate) async fn write(
        &self,
        cluster: &GatedCluster<'_>,
        write: &SilenceWrite,
    ) -> SilenceOutcome {
        let outcome = match write {
            SilenceWrite::Set(wish) => self.set(cluster, wish).await,
            SilenceWrite::Remove { id, .. } => self.remove(id).await,
        };
        outcome.unwrap_or_else(SilenceOutcome::Failed)
    }

    async fn set(
        &self,
        cluster: &GatedCluster<'_>,
        wish: &SilenceWish,
    ) -> Result<SilenceOutcome, String> {
        let enforced = self.matchers.iter().cloned();
        let enforced = enforced
            .map(|matcher| AlertMatcher { value: cluster.fill_in(&matcher.value), ..matcher });
        let matchers: Vec<AlertMatcher> = enforced.chain(wish.matchers.iter().cloned()).collect();
        let replaced = match &wish.replaces {
            Some(replaced) => self.get(&replaced.id).await?,
            None => None,
        };
        let in_force = match replaced.as_ref().filter(|found| found.is_in_force()) {
            Some(found) => Some(found.clone()),
            // One may have been created, and not noted.
            None => self.find(&matchers, &wish.comment).await?,
        };
        if let (None, Some(found), Some(replaced)) = (&in_force, replaced, &wish.replaces)
            && was_ended(&found, replaced)
        {
            return Ok(SilenceOutcome::Ended(found.id));
        }
        let starts_at = in_force.as_ref().map_or(self.clock.now(), |found| found.starts_at);
        let mut silence = json!({
            "matchers": matchers.iter().map(AlertMatcher::to_alertmanager).collect::<Vec<_>>(),
            "startsAt": starts_at,
            "endsAt": wish.ends_at,
            "createdBy": CREATED_BY,
            "comment": wish.comment,
        });
        if let Some(found) = in_force {
            silence["id"] = found.id.into();
        }
        let answer = self.ask(Method::POST, SILENCES, Some(&silence)).await?;
        let answer = answer.ok_or("Alertmanager does not have the path /api/v2/silences")?;
        Ok(SilenceOutcome::Set(read::<Created>(&answer)?.silence_id))
    }

    async fn remove(&self, id: &str) -> Result<SilenceOutcome, String> {
        let found = self.get(id).await?;
        if found.is_some_and(|found| found.is_in_force()) {
            self.ask(Method::DELETE, &path_of(id), None).await?;
        }
        Ok(SilenceOutcome::Removed)
    }

    async fn get(&self, id: &str) -> Result<Option<Found>, String> {
        let answer = self.ask(Method::GET, &path_of(id), None).await?;
        answer.as_deref().map(read).transpose()
    }

    /// The silence in force with this comment.
    async fn find(
        &self,
        matchers: &[AlertMatcher],
        comment: &str,
    ) -> Result<Option<Found>, String> {
        // The filter is compared with the text of a matcher, whatever its type.
        let first = matchers.iter().find(|one| one.match_type == MatchType::Equal);
        let filter = first.map(|one| ("filter", format!("{}={}", one.name, json!(one.value))));
        let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(filter).finish();
        let path = format!("{SILENCES}?{query}");
        let answer = self.ask(Method::GET, &path, None).await?.unwrap_or_default();
        let found: Vec<Found> = read(&answer)?;
        let mut own = found.into_iter().filter(|one| one.created_by == CREATED_BY);
        Ok(own.find(|found| found.comment == comment && found.is_in_force()))
    }

    /// The body of a successful answer; `None` for status 404.
    async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Option<Vec<u8>>, String> {
        let client = self.client.clone()?;
        self.is_awake()?;
        let body = body.map(|body| Body::from(body.to_string().into_bytes()));
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", "application/json")
            .body(body.unwrap_or_else(Body::empty))
            .map_err(|error| format!("the request to Alertmanager cannot be sent: {error}"))?;
        let answer = async {
            let response = client.send(request).await?;
            let status = response.status();
            Ok((status, response.into_body().collect().await?.to_bytes().to_vec()))
        };
        let answer = match tokio::time::timeout(DEADLINE, Box::pin(answer)).await {
            Ok(answer) => answer.map_err(|error: kube::Error| match too_large(&error) {
                Some(what) => format!("the answer of Alertmanager is too large: {what}"),
                None => format!("Alertmanager does not answer: {}", cause(&error)),
            }),
            Err(_) => Err(format!("Alertmanager does not answer within {} s", DEADLINE.as_secs())),
        };
        let (status, body) = answer.inspect_err(|why| self.rest(why))?;
        if status.is_success() {
            return Ok(Some(body));
        }
        if status == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        let shown: String = String::from_utf8_lossy(&body).trim().chars().take(MAX_SHOWN).collect();
        let why = format!("Alertmanager responds with HTTP status {}: {shown}", status.as_u16());
        if status.is_server_error() {
            self.rest(&why);
        }
        Err(why)
    }

    /// Whether it may be asked; otherwise the error is why it did not answer a moment ago.
    fn is_awake(&self) -> Result<(), String> {
        let rests = self.rests.lock().unwrap_or_else(PoisonError::into_inner);
        match &*rests {
            Some((until, why)) => {
                let left = until.duration_since(self.clock.now());
                // A clock may have been stepped back meanwhile.
                let rests = left.is_positive() && left <= SILENT_FOR;
                if rests { Err(why.clone()) } else { Ok(()) }
            }
            None => Ok(()),
        }
    }

    fn rest(&self, why: &str) {
        let until = self.clock.now().saturating_add(SILENT_FOR);
        *self.rests.lock().unwrap_or_else(PoisonError::into_inner) =
            until.ok().map(|until| (until, why.to_owned()));
    }
}

impl Found {
    fn is_in_force(&self) -> bool {
        self.status.state != FoundState::Expired
    }
}

/// Whether another client has ended a silence that has expired: before its time.
fn was_ended(found: &Found, replaced: &Replaced) -> bool {
    replaced.ends_at.duration_since(found.ends_at) > SignedDuration::from_secs(1)
}

fn path_of(id: &str) -> String {
    format!(
        "/api/v2/silence/{}",
        form_urlencoded::byte_serialize(id.as_bytes()).collect::<String>()
    )
}

fn read<T: serde::de::DeserializeOwned>(answer: &[u8]) -> Result<T, String> {
    serde_json::from_slice(answer)
        .map_err(|error| format!("the answer of Alertmanager cannot be read: {error}"))
}
