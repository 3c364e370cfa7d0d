//! Injected faults: an API that is down, slow, rejects requests, loses responses, drops watches, or
//! has a lagging watch cache. All are set at run time and affect requests before or after the
//! commit.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;

use crate::server::Shared;

/// How a down API responds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Down {
    /// The connection fails.
    Refuse,
    /// 503 for every request.
    Unavailable,
}

/// The effect of a fault on a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultAction {
    /// The request has no effect; the caller gets this status code.
    Status(u16),
    /// The request takes effect, but the caller gets this status code.
    StatusAfterCommit(u16),
    /// The request has no effect; the connection fails.
    Refuse,
    /// The request takes effect, but the connection fails before the response.
    RefuseAfterCommit,
    /// The request is delayed before it is handled.
    Delay(Duration),
}

/// The requests that a fault affects, how often, and its action. An empty filter matches every
/// request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultRule {
    /// Kubernetes verb: `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`,
    /// `deletecollection`.
    pub verb: Option<String>,
    /// `plural.group`, or `plural` for core.
    pub resource: Option<String>,
    /// Subresource; `Some("")` matches only the object itself.
    pub subresource: Option<String>,
    /// Namespace.
    pub namespace: Option<String>,
    /// Name of the object.
    pub name: Option<String>,
    /// Exact user agent.
    pub user_agent: Option<String>,
    /// How many matching requests pass before the fault starts.
    pub after: u32,
    /// How many requests it affects; `u32::MAX` for all.
    pub times: u32,
    /// The action.
    pub action: FaultAction,
}

impl FaultRule {
    /// A rule that affects the next request of any kind.
    pub fn next(action: FaultAction) -> Self {
        Self {
            verb: None,
            resource: None,
            subresource: None,
            namespace: None,
            name: None,
            user_agent: None,
            after: 0,
            times: 1,
            action,
        }
    }

    /// Only requests of this verb.
    pub fn verb(mut self, verb: &str) -> Self {
        self.verb = Some(verb.to_owned());
        self
    }

    /// Only requests for this resource, `plural.group`.
    pub fn resource(mut self, resource: &str) -> Self {
        self.resource = Some(resource.to_owned());
        self
    }

    /// Only requests for this subresource.
    pub fn subresource(mut self, subresource: &str) -> Self {
        self.subresource = Some(subresource.to_owned());
        self
    }

    /// Only requests for objects of this name.
    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// Only requests of this client.
    pub fn user_agent(mut self, user_agent: &str) -> Self {
        self.user_agent = Some(user_agent.to_owned());
        self
    }

    /// Affects this many requests.
    pub fn times(mut self, times: u32) -> Self {
        self.times = times;
        self
    }

    /// Lets this many requests pass first.
    pub fn after(mut self, after: u32) -> Self {
        self.after = after;
        self
    }

    fn matches(&self, request: &RequestInfo<'_>) -> bool {
        let fits = |filter: &Option<String>, found: &str| {
            filter.as_deref().is_none_or(|wanted| wanted == found)
        };
        fits(&self.verb, request.verb)
            && fits(&self.resource, request.resource)
            && fits(&self.subresource, request.subresource)
            && fits(&self.namespace, request.namespace)
            && fits(&self.name, request.name)
            && fits(&self.user_agent, request.user_agent)
    }
}

/// A lagging watch cache for one client and one resource: its lists with `resourceVersion=0` return
/// an older revision, and its watches deliver nothing until a given time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaleView {
    /// Exact user agent of the client.
    pub user_agent: String,
    /// `plural.group`, or `plural` for core.
    pub resource: String,
    /// The revision that lists return.
    pub revision: u64,
    /// When the cache catches up.
    pub until: Timestamp,
}

/// The attributes of a request that rules match.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestInfo<'a> {
    pub(crate) verb: &'a str,
    pub(crate) resource: &'a str,
    pub(crate) subresource: &'a str,
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
    pub(crate) user_agent: &'a str,
}

/// The combined effect of the faults on one request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) delay: Duration,
    pub(crate) action: Option<FaultAction>,
}

/// All active faults.
#[derive(Debug, Default)]
pub(crate) struct FaultState {
    down: Option<Down>,
    cut: BTreeSet<String>,
    exempt: BTreeSet<String>,
    latency: Duration,
    rules: Vec<FaultRule>,
    stale: Vec<StaleView>,
    epoch: u64,
}

impl FaultState {
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether all requests of this client fail.
    pub(crate) fn is_down(&self, user_agent: &str) -> bool {
        (self.down.is_some() && !self.exempt.contains(user_agent)) || self.cut.contains(user_agent)
    }

    pub(crate) fn judge(&mut self, request: &RequestInfo<'_>) -> Verdict {
        if self.exempt.contains(request.user_agent) {
            return Verdict::default();
        }
        let mut verdict = Verdict { delay: self.latency, action: None };
        match self.down {
            Some(Down::Refuse) => {
                verdict.action = Some(FaultAction::Refuse);
                return verdict;
            }
            Some(Down::Unavailable) => {
                verdict.action = Some(FaultAction::Status(503));
                return verdict;
            }
            None if self.cut.contains(request.user_agent) => {
                verdict.action = Some(FaultAction::Refuse);
                return verdict;
            }
            None => {}
        }
        for rule in &mut self.rules {
            if rule.times == 0 || !rule.matches(request) {
                continue;
            }
            if rule.after > 0 {
                rule.after -= 1;
                continue;
            }
            if rule.times != u32::MAX {
                rule.times -= 1;
            }
            match rule.action {
                FaultAction::Delay(delay) => verdict.delay += delay,
                action => {
                    verdict.action = Some(action);
                    break;
                }
            }
        }
        self.rules.retain(|rule| rule.times > 0);
        verdict
    }

    pub(crate) fn stale(
        &self,
        user_agent: &str,
        resource: &str,
        now: Timestamp,
    ) -> Option<&StaleView> {
        self.stale.iter().find(|view| {
            view.user_agent == user_agent && view.resource == resource && view.until > now
        })
    }
}

/// The error of a connection that the fault layer breaks.
pub(crate) fn refused() -> std::io::Error {
    std::io::Error::new(
        std::io::ErrorKind::ConnectionRefused,
        "the simulated API server does not answer",
    )
}

/// A handle to the faults of one server.
#[derive(Clone, Copy)]
pub struct Faults<'a>(pub(crate) &'a Shared);

impl Faults<'_> {
    /// Takes the whole API down, or up again. Taking it down breaks running watches.
    pub fn set_down(&self, down: Option<Down>) {
        self.0.faults().down = down;
        self.0.lock().wake_all();
    }

    /// Cuts one client off, or reconnects it: its requests fail, waiting ones included, and its
    /// watches break.
    pub fn set_cut(&self, user_agent: &str, cut: bool) {
        {
            let mut faults = self.0.faults();
            if cut {
                faults.cut.insert(user_agent.to_owned());
            } else {
                faults.cut.remove(user_agent);
            }
        }
        self.0.lock().wake_all();
    }

    /// Spares one client all faults: it sets the stage and is not part of the play.
    pub fn exempt(&self, user_agent: &str) {
        self.0.faults().exempt.insert(user_agent.to_owned());
    }

    /// Delays every request.
    pub fn set_latency(&self, latency: Duration) {
        self.0.faults().latency = latency;
    }

    /// Adds a rule; rules are tried in the order in which they were added.
    pub fn add(&self, rule: FaultRule) {
        self.0.faults().rules.push(rule);
    }

    /// Whether a rule will still reject or change a request.
    pub fn has_rules(&self) -> bool {
        !self.0.faults().rules.is_empty()
    }

    /// Ends every running watch, cleanly.
    pub fn drop_watches(&self) {
        self.0.faults().epoch += 1;
        self.0.lock().wake_all();
    }

    /// Makes a client's view of a resource lag.
    pub fn add_stale(&self, view: StaleView) {
        self.0.faults().stale.push(view);
    }

    /// Removes all faults.
    pub fn clear(&self) {
        {
            let mut faults = self.0.faults();
            let epoch = faults.epoch;
            *faults = FaultState { epoch, ..FaultState::default() };
        }
        self.0.lock().wake_all();
    }
}
