//! Whether the services that an upgrade depends on answer (`docs/facts/openshift-upgrades.md#external-dependencies`).
//!
//! Each URL is requested with GET, all at the same time, following redirects. [`Attempt::after`] decides on an answer.

use jiff::SignedDuration;

use crate::{Compat, url::without_credentials};

/// How often a URL is requested.
const ATTEMPTS: u32 = 3;
/// What names the URLs in the ConfigMap.
const FIELD: &str = "extDependencyAvailabilityChecks.http.urls";
const FIRST_DELAY: SignedDuration = SignedDuration::from_secs(1);

/// Why a dependency is not available.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// There was no answer in time, or no connection.
    #[error("client request error for {url}: {why}")]
    Request {
        /// The URL.
        url: String,
        /// A sentence about the request.
        why: String,
    },
    /// The answer has a status of 500 or more.
    #[error("server error for {url}: {status}")]
    Server {
        /// The URL.
        url: String,
        /// The status of HTTP.
        status: u16,
    },
    /// The answer has a status from 400 to 499: another request would have the same answer.
    #[error("client error for {url}: {status}")]
    Client {
        /// The URL.
        url: String,
        /// The status of HTTP.
        status: u16,
    },
}

/// What a request of a URL has come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// An answer with this status of HTTP.
    Status(u16),
    /// No answer, for this reason.
    Failed(String),
}

/// A request of a URL, one of three.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    number: u32,
    /// The delay of the next one without its jitter.
    delay: SignedDuration,
}

/// What follows from an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// The dependency is available.
    Available,
    /// It is not.
    Unavailable(Unavailable),
    /// It is requested again after this delay.
    Retry(SignedDuration, Attempt),
}

impl Attempt {
    /// The first one.
    pub const FIRST: Self = Self { number: 1, delay: FIRST_DELAY };

    /// What follows from an answer of this URL. `jitter` is a random number from 0 to 1: a delay is up to half longer
    /// by it.
    pub fn after(self, url: &str, answer: &Answer, jitter: f64) -> Next {
        let url = without_credentials(url).into_owned();
        let error = match answer {
            Answer::Status(..400) => return Next::Available,
            Answer::Status(status @ 400..500) => {
                return Next::Unavailable(Unavailable::Client { url, status: *status });
            }
            Answer::Status(status) => Unavailable::Server { url, status: *status },
            Answer::Failed(why) => Unavailable::Request { url, why: why.clone() },
        };
        if self.number >= ATTEMPTS {
            return Next::Unavailable(error);
        }
        let delay = self.delay + self.delay.mul_f64(jitter.clamp(0.0, 1.0) / 2.0);
        Next::Retry(delay, Self { number: self.number + 1, delay: delay * 2 })
    }
}

/// The URLs that are to be requested: none once the upgrade was commenced.
pub fn to_request(urls: &[String], commenced: bool) -> &[String] {
    if commenced { &[] } else { urls }
}

/// The timeout of a request, of the configured number of seconds. In the original the number overflows, and requests
/// have no timeout.
pub fn timeout(seconds: u32, compat: Compat) -> Option<SignedDuration> {
    match compat {
        Compat::Repaired => Some(SignedDuration::from_secs(seconds.into())),
        Compat::Strict => None,
    }
}

/// The error of the step, of the URLs that are not available in the order in which that was known. `None` if the step is
/// done. The original shows the last one only, without a remedy.
pub fn step_error(unavailable: &[Unavailable], compat: Compat) -> Option<String> {
    let last = unavailable.last()?;
    Some(match compat {
        Compat::Repaired => {
            let errors: Vec<String> = unavailable.iter().map(ToString::to_string).collect();
            format!("{}; restore each service, or correct {FIELD}", errors.join("; "))
        }
        Compat::Strict => last.to_string(),
    })
}
