//! The version graph of the controller, which all ClusterUpgrades share (`docs/facts/cincinnati.md`).
//!
//! A read is believed for some seconds where nothing is begun on it. What begins rests on a read that was made for it.

mod source;

use std::{
    path::PathBuf,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use http::uri::PathAndQuery;
use jiff::{SignedDuration, Timestamp};
use refit_core::managed::graph::GraphRead;
use refit_runtime::client::ClientStack;

use self::source::Source;
use crate::{context::Context, shared_read::SharedRead};

/// How long a read may take.
const DEADLINE: Duration = Duration::from_secs(5);
/// For how long a read counts where nothing is begun on it: an upgrade that waits for the graph looks each minute.
const RECENT_FOR: SignedDuration = SignedDuration::from_secs(45);

/// Where the version graph is.
#[derive(Clone, Debug)]
pub enum GraphSource {
    /// In a file.
    File(PathBuf),
    /// In a ConfigMap of the management cluster.
    ConfigMap {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// On a server.
    Url {
        /// How the server is reached.
        config: Box<kube::Config>,
        /// What is asked of it. A query may hold a secret: it is never shown.
        path: PathAndQuery,
    },
}

impl std::fmt::Display for GraphSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::ConfigMap { namespace, name } => write!(f, "ConfigMap {namespace}/{name}"),
            Self::Url { config, path } => {
                let server = config.cluster_url.to_string();
                write!(f, "{}{}", server.trim_end_matches('/'), path.path())
            }
        }
    }
}

/// Reads the version graph.
pub(crate) struct VersionGraphs {
    /// `None` if the controller has none.
    source: Option<Source>,
    reads: SharedRead<GraphRead>,
    last: Mutex<Option<(Timestamp, GraphRead)>>,
}

impl VersionGraphs {
    pub(crate) fn new(stack: &ClientStack, source: Option<&GraphSource>) -> Self {
        let source = source.map(|source| Source::new(stack, source));
        Self { source, reads: SharedRead::default(), last: Mutex::default() }
    }

    /// Reads the graph now, or waits for a read that begins after this call.
    pub(crate) async fn read(&self, ctx: &Context) -> GraphRead {
        let Some(source) = &self.source else { return GraphRead::NotConfigured };
        let read = async {
            let read = source.read(&ctx.client).await;
            let last = Some((ctx.clock.now(), read.clone()));
            *self.last.lock().unwrap_or_else(PoisonError::into_inner) = last;
            read
        };
        self.reads.share(Box::pin(read)).await
    }

    /// What was read a moment ago, where nothing is begun on it; otherwise the graph is read now.
    pub(crate) async fn recent(&self, ctx: &Context) -> GraphRead {
        let recent = {
            let (now, last) = (ctx.clock.now(), self.last.lock());
            let last = last.unwrap_or_else(PoisonError::into_inner);
            let is_recent = |at: Timestamp| at <= now && now.duration_since(at) < RECENT_FOR;
            last.as_ref().filter(|(at, _)| is_recent(*at)).map(|(_, read)| read.clone())
        };
        match recent {
            Some(read) => read,
            None => self.read(ctx).await,
        }
    }
}
