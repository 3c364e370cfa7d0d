//! The receivers of notifications (`docs/facts/notifications.md`).

use std::{
    collections::BTreeMap,
    error::Error,
    io,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use http::{
    Request, Response, Uri,
    header::{CONTENT_TYPE, RETRY_AFTER},
};
use http_body_util::BodyExt as _;
use kube::{Client, Config, client::Body};
use refit_core::managed::notifications::{
    delivery::{Attempt, back_off},
    messages::Entry,
};
use refit_kinds::refit::Receiver;
use refit_runtime::{Clock, client::ClientStack, clock::instant, lease};
use tokio::time::Instant;

use super::Subject;
use crate::{Settings, settings::SlackSettings};

/// Deadline of a request.
const DEADLINE: Duration = Duration::from_secs(5);
/// Deadline of the body of an answer, which is only shown.
const BODY_DEADLINE: Duration = Duration::from_secs(1);
/// How long after a message Slack takes the next one.
const SLACK_PACE: Duration = Duration::from_secs(1);
/// Maximum size of an answer.
const MAX_ANSWER: usize = 16 << 10;
/// Maximum length of a word of an answer that is shown.
const MAX_WORD: usize = 40;

/// The receivers of the settings.
pub(crate) struct Receivers {
    cloud_events: Option<CloudEvents>,
    slack: Option<Slack>,
    pub(super) unmarked: Unmarked,
}

/// What became of notifications, while the status does not show it: at most one for a receiver and an object.
#[derive(Default)]
pub(super) struct Unmarked(Mutex<BTreeMap<(Receiver, Subject), (String, Attempt)>>);

impl Unmarked {
    /// The id of a notification, and what became of it.
    pub(super) fn get(&self, to: &(Receiver, Subject)) -> Option<(String, Attempt)> {
        lock(&self.0).get(to).cloned()
    }

    pub(super) fn remember(&self, to: &(Receiver, Subject), id: &str, attempt: &Attempt) {
        lock(&self.0).insert(to.clone(), (id.to_owned(), attempt.clone()));
    }

    pub(super) fn forget(&self, to: &(Receiver, Subject)) {
        lock(&self.0).remove(to);
    }
}

/// A server that gets CloudEvents.
struct CloudEvents {
    stack: ClientStack,
    config: Box<Config>,
    server: Server,
}

/// A webhook whose URL is a secret: it is read again for each message.
struct Slack {
    stack: ClientStack,
    settings: SlackSettings,
    server: Server,
    /// When it takes the next message.
    free_at: Mutex<Option<Instant>>,
}

/// What is known of a server.
#[derive(Default)]
struct Server {
    /// The client for a URL.
    client: Mutex<Option<(Uri, Client)>>,
    /// Attempts that failed in a row, and until when it is spared.
    trouble: Mutex<Trouble>,
}

#[derive(Clone, Copy, Default)]
struct Trouble {
    failed_attempts: i32,
    until: Option<Instant>,
}

impl Receivers {
    pub(crate) fn new(stack: &ClientStack, settings: &Settings) -> Self {
        let stack = || stack.clone().with_deadline(DEADLINE).with_max_answer(MAX_ANSWER);
        let cloud_events = settings.cloud_events.clone();
        Self {
            cloud_events: cloud_events.map(|config| CloudEvents {
                stack: stack(),
                config,
                server: Server::default(),
            }),
            slack: settings.slack.clone().map(|settings| Slack {
                stack: stack(),
                settings,
                server: Server::default(),
                free_at: Mutex::default(),
            }),
            unmarked: Unmarked::default(),
        }
    }

    /// Whether a receiver is configured.
    pub(crate) fn has(&self, receiver: Receiver) -> bool {
        self.server(receiver).is_some()
    }

    fn server(&self, receiver: Receiver) -> Option<&Server> {
        match receiver {
            Receiver::CloudEvents => self.cloud_events.as_ref().map(|one| &one.server),
            Receiver::Slack => self.slack.as_ref().map(|one| &one.server),
        }
    }

    /// For how long a receiver that does not take messages gets none.
    pub(crate) fn spared_for(&self, receiver: Receiver) -> Option<Duration> {
        let trouble = *lock(&self.server(receiver)?.trouble);
        let left = trouble.until?.saturating_duration_since(instant());
        Some(left).filter(|left| !left.is_zero())
    }

    /// Posts a notification. An error means that this process is not the leader any more.
    pub(crate) async fn post(
        &self,
        receiver: Receiver,
        entry: &Entry<'_>,
        clock: &Clock,
    ) -> kube::Result<Attempt> {
        let answer = match receiver {
            Receiver::CloudEvents => match &self.cloud_events {
                Some(server) => server.post(entry).await,
                None => Err(not_configured()),
            },
            Receiver::Slack => match &self.slack {
                Some(server) => server.post(entry).await,
                None => Err(not_configured()),
            },
        };
        let now = clock.now();
        let attempt = match answer {
            Ok(answer) => {
                Attempt::of_answer(answer.status, answer.retry_after.as_deref(), &answer.words, now)
            }
            Err(PostFailed::NotLeader(error)) => return Err(error),
            Err(PostFailed::Why(why)) => Attempt::Failed { why, after: None },
        };
        if let Some(server) = self.server(receiver) {
            server.learn(&attempt, instant());
        }
        Ok(attempt)
    }
}

/// Why there is no answer.
enum PostFailed {
    NotLeader(kube::Error),
    /// Without secrets.
    Why(String),
}

fn not_configured() -> PostFailed {
    PostFailed::Why("it is not configured".to_owned())
}

struct Answer {
    status: u16,
    retry_after: Option<String>,
    words: String,
}

impl CloudEvents {
    async fn post(&self, entry: &Entry<'_>) -> Result<Answer, PostFailed> {
        let message = ("application/cloudevents+json", entry.cloud_event().to_string());
        self.server.post(&self.stack, &self.config, message).await
    }
}

impl Slack {
    async fn post(&self, entry: &Entry<'_>) -> Result<Answer, PostFailed> {
        let mut config = Config::new(self.settings.url().map_err(PostFailed::Why)?);
        config.root_cert_file.clone_from(&self.settings.ca_file);
        let message = ("application/json", entry.slack_message().to_string());
        let free_at = *lock(&self.free_at);
        if let Some(free_at) = free_at {
            tokio::time::sleep_until(free_at).await;
        }
        let answer = self.server.post(&self.stack, &config, message).await;
        *lock(&self.free_at) = Some(instant() + SLACK_PACE);
        answer
    }
}

impl Server {
    /// Posts a message to the URL of a configuration.
    async fn post(
        &self,
        stack: &ClientStack,
        config: &Config,
        (media_type, body): (&str, String),
    ) -> Result<Answer, PostFailed> {
        let url = config.cluster_url.clone();
        let path = url.path_and_query().map_or("/", |path| path.as_str());
        let request = Request::post(path)
            .header(CONTENT_TYPE, media_type)
            .body(Body::from(body.into_bytes()))
            .map_err(|_| PostFailed::Why("the request cannot be made".to_owned()))?;
        let client = self.client(stack, config)?;
        // Until the head of the answer: its status counts, whatever follows it.
        match tokio::time::timeout(DEADLINE, client.send(request)).await {
            Ok(Ok(response)) => Ok(read(response).await),
            Ok(Err(error)) if lease::is_fenced(&error) => Err(PostFailed::NotLeader(error)),
            Ok(Err(error)) => Err(PostFailed::Why(without_secrets(&error, path))),
            Err(_) => Err(PostFailed::Why(late())),
        }
    }

    fn client(&self, stack: &ClientStack, config: &Config) -> Result<Client, PostFailed> {
        let mut known = lock(&self.client);
        let url = config.cluster_url.clone();
        if let Some((_, client)) = known.as_ref().filter(|(of, _)| *of == url) {
            return Ok(client.clone());
        }
        // The path belongs to the request: a client appends it to its own, with a slash between them.
        let origin = Uri::builder()
            .scheme(url.scheme_str().unwrap_or_default())
            .authority(url.authority().map_or("", |authority| authority.as_str()))
            .path_and_query("/");
        let invalid = || PostFailed::Why("its settings are invalid".to_owned());
        let cluster_url = origin.build().map_err(|_| invalid())?;
        let mut config = config.clone();
        config.cluster_url = cluster_url;
        let client = stack.client(&config).map_err(|_| invalid())?;
        *known = Some((url, client.clone()));
        Ok(client)
    }

    /// Spares a server that does not take messages: all of them would fail.
    fn learn(&self, attempt: &Attempt, now: Instant) {
        let mut trouble = lock(&self.trouble);
        match attempt {
            Attempt::Delivered | Attempt::GivenUp { .. } => *trouble = Trouble::default(),
            Attempt::Failed { after, .. } => {
                trouble.failed_attempts = trouble.failed_attempts.saturating_add(1);
                // Not as long as a single message waits: one that succeeds ends it for all.
                let wait = back_off(trouble.failed_attempts.min(2), *after);
                trouble.until = Some(now + wait.unsigned_abs());
            }
            Attempt::Limited { after, .. } => {
                trouble.until = Some(now + back_off(1, *after).unsigned_abs());
            }
        }
    }
}

async fn read<B: hyper::body::Body>(response: Response<B>) -> Answer {
    let status = response.status().as_u16();
    let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
    let retry_after = retry_after.map(str::to_owned);
    let body = tokio::time::timeout(BODY_DEADLINE, response.into_body().collect()).await;
    let body = body.ok().and_then(Result::ok).map(http_body_util::Collected::to_bytes);
    let word = body.and_then(|body| String::from_utf8(body.to_vec()).ok());
    // Slack answers with a word, such as no_service. Any other text may repeat what was sent.
    let is_word = |word: &String| {
        word.len() <= MAX_WORD && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
    };
    Answer { status, retry_after, words: word.filter(is_word).unwrap_or_default() }
}

fn late() -> String {
    format!("no answer within {} s", DEADLINE.as_secs())
}

/// What an error means, without the path of a request, which may be a secret.
fn without_secrets(error: &kube::Error, path: &str) -> String {
    let mut causes = Vec::new();
    let mut next: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(cause) = next {
        let io = cause.downcast_ref::<io::Error>();
        if io.is_some_and(|error| error.kind() == io::ErrorKind::TimedOut) {
            return late();
        }
        causes.push(cause.to_string());
        next = cause.source();
    }
    let last = causes.pop().unwrap_or_default();
    let is_safe = !last.contains("://") && (path.len() <= 1 || !last.contains(path));
    if is_safe { last } else { "the request failed".to_owned() }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_request_does_not_show_its_url() {
        let path = "/services/T0/B0/secret";
        let shown =
            |text: &str| without_secrets(&kube::Error::Service(text.to_owned().into()), path);
        assert_eq!(shown("invalid peer certificate: Expired"), "invalid peer certificate: Expired");
        for leaks in ["cannot POST /services/T0/B0/secret", "https://hooks.slack.com: refused"] {
            assert_eq!(shown(leaks), "the request failed");
        }
        let late = io::Error::new(io::ErrorKind::TimedOut, "no answer from the API server");
        let late = without_secrets(&kube::Error::Service(late.into()), path);
        assert_eq!(late, "no answer within 5 s");
    }

    #[tokio::test]
    async fn only_a_word_of_an_answer_is_shown() {
        for (body, wanted) in [
            ("no_service", "no_service"),
            ("No handler for /services/T0/B0/secret", ""),
            ("<html></html>", ""),
        ] {
            let response = Response::new(Body::from(body.as_bytes().to_vec()));
            assert_eq!(read(response).await.words, wanted);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_status_counts_although_its_body_stalls() {
        let stalls = http_body_util::StreamBody::new(futures::stream::pending::<
            Result<hyper::body::Frame<hyper::body::Bytes>, io::Error>,
        >());
        let mut response = Response::new(stalls);
        *response.status_mut() = http::StatusCode::ACCEPTED;
        assert_eq!(read(response).await.status, 202);
    }

    #[test]
    fn a_server_that_fails_is_spared_until_it_takes_a_message() {
        let server = Server::default();
        let now = instant();
        let until = || lock(&server.trouble).until.map(|until| (until - now).as_secs());
        let after = |after: Option<i64>| after.map(jiff::SignedDuration::from_secs);
        let failed = |of| Attempt::Failed { why: String::new(), after: after(of) };
        let limited = |of| Attempt::Limited { why: String::new(), after: after(of) };
        for (attempt, wanted, what) in [
            (limited(None), Some(30), "its first retry"),
            (failed(None), Some(30), "a limit is not a failure"),
            (failed(None), Some(60), "twice as long"),
            (failed(None), Some(60), "a single message waits longer"),
            (failed(Some(300)), Some(300), "it asks for longer"),
            (limited(Some(2)), Some(2), "it asks for less"),
            (limited(Some(999_999)), Some(1800), "it asks for too long"),
            (Attempt::Delivered, None, "it takes messages"),
        ] {
            server.learn(&attempt, now);
            assert_eq!(until(), wanted, "{what}");
        }
    }
}
