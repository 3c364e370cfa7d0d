//! Watches. A watch holds a position in the history and no queue: when woken it reads the changes
//! after its position. A slow reader costs nothing, and one that falls out of the ring gets a 410.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::Stream;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::error::{ApiError, required};
use crate::history::{Change, ChangeKind};
use crate::object::set_meta;
use crate::path::{ListOptions, View};
use crate::read::{check_fields, parse_version, selected, too_old};
use crate::resources::Resource;
use crate::server::Shared;
use crate::store::{Store, namespace_of};
use crate::write::{to_bytes, value_as};

/// How often an idle watch gets a bookmark.
const BOOKMARK_PERIOD: Duration = Duration::from_mins(1);
const DEFAULT_TIMEOUT_SECONDS: u64 = 1800;
/// Maximum bytes of events in one frame.
const FRAME_BYTES: usize = 256 * 1024;

/// One running watch.
pub(crate) struct Watch {
    shared: Arc<Shared>,
    resource: Arc<Resource>,
    namespace: Option<String>,
    options: ListOptions,
    view: View,
    user_agent: String,
    notify: Arc<Notify>,
    position: u64,
    epoch: u64,
    /// Frames to send at the start.
    ready: Vec<Bytes>,
    /// Whether the initial events of a consistent start are still to be sent; a lagging cache holds
    /// them back.
    initial: bool,
    /// Whether the watch starts with an error.
    failed: bool,
}

/// The parameters of a watch.
pub(crate) struct WatchRequest {
    pub(crate) resource: Arc<Resource>,
    pub(crate) namespace: Option<String>,
    pub(crate) options: ListOptions,
    pub(crate) view: View,
    pub(crate) user_agent: String,
    /// The revision that a lagging cache returns to this caller.
    pub(crate) stale: Option<u64>,
}

enum Step {
    Send(Bytes),
    Last(Bytes),
    Close,
    Broken,
    Wait(Option<Duration>),
}

fn frame(kind: &str, object: &[u8], into: &mut Vec<u8>) {
    into.extend_from_slice(b"{\"type\":\"");
    into.extend_from_slice(kind.as_bytes());
    into.extend_from_slice(b"\",\"object\":");
    into.extend_from_slice(object);
    into.extend_from_slice(b"}\n");
}

fn error_frame(error: &ApiError) -> Bytes {
    let mut bytes = Vec::new();
    frame("ERROR", &to_bytes(&error.status()), &mut bytes);
    Bytes::from(bytes)
}

impl Watch {
    /// Starts a watch at the position in its options.
    pub(crate) fn start(
        shared: Arc<Shared>,
        store: &mut Store,
        request: WatchRequest,
    ) -> Result<Self, ApiError> {
        let WatchRequest { resource, namespace, options, view, user_agent, stale } = request;
        check_fields(&resource, &options)?;
        if options.initial_events == Some(true)
            && (options.version_match != "NotOlderThan" || !options.bookmarks)
        {
            let fault = required(
                "resourceVersionMatch",
                "sendInitialEvents needs resourceVersionMatch=NotOlderThan and \
                 allowWatchBookmarks=true",
            );
            return Err(ApiError::invalid_kind("meta.k8s.io", "ListOptions", "", &[fault]));
        }
        let notify = store.notify(&resource.id);
        let epoch = shared.watch_epoch();
        let mut watch = Self {
            shared,
            resource,
            namespace,
            options,
            view,
            user_agent,
            notify,
            position: store.revision,
            epoch,
            ready: Vec::new(),
            initial: false,
            failed: false,
        };
        let text = watch.options.resource_version.clone();
        let asked = if text.is_empty() { 0 } else { parse_version(&text)? };
        match watch.options.initial_events {
            Some(true) => watch.initial = true,
            None if asked == 0 => {
                let lags = !text.is_empty();
                let revision = stale.filter(|_| lags).unwrap_or(store.revision);
                watch.position = revision.min(store.revision);
                if let Err(error) = watch.send_initial(store) {
                    watch.ready = vec![error_frame(&error)];
                    watch.failed = true;
                }
            }
            Some(false) if asked == 0 => {}
            _ => {
                watch.position = asked;
                let oldest = store.history.oldest_resumable(&watch.resource.id);
                if asked < oldest {
                    watch.ready.push(error_frame(&too_old(asked, oldest)));
                    watch.failed = true;
                }
            }
        }
        Ok(watch)
    }

    /// Queues frames of `ADDED` for the objects at the watch's position.
    fn send_initial(&mut self, store: &Store) -> Result<(), ApiError> {
        let table = store.table_at(&self.resource, self.position)?;
        let mut bytes = Vec::new();
        let namespace = self.namespace.as_deref();
        for (_, entry) in selected(&self.resource, &table, namespace, &self.options) {
            let object = crate::read::render(entry, &self.resource, self.view, store.now);
            frame("ADDED", &object, &mut bytes);
            if bytes.len() >= FRAME_BYTES {
                self.ready.push(Bytes::from(std::mem::take(&mut bytes)));
            }
        }
        if !bytes.is_empty() {
            self.ready.push(Bytes::from(bytes));
        }
        Ok(())
    }

    fn bookmark(&self, initial_end: bool) -> Bytes {
        let mut meta = json!({
            "resourceVersion": self.position.to_string(),
            "creationTimestamp": null,
        });
        if initial_end {
            meta["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let empty = |kind: &str, version: &str| json!({"kind": kind, "apiVersion": version, "metadata": meta});
        let object = match self.view {
            View::Full => empty(&self.resource.kind, &self.resource.api_version()),
            View::Metadata => empty("PartialObjectMetadata", "meta.k8s.io/v1"),
            View::Table(_) => crate::table::of_none(&self.resource, &meta),
        };
        let mut bytes = Vec::new();
        frame("BOOKMARK", &to_bytes(&object), &mut bytes);
        Bytes::from(bytes)
    }

    fn step(&mut self) -> Step {
        let shared = self.shared.clone();
        let mut store = shared.lock();
        if !self.ready.is_empty() {
            let next = self.ready.remove(0);
            // An error frame at the start is the only frame of the watch.
            return if self.failed { Step::Last(next) } else { Step::Send(next) };
        }
        if self.epoch != shared.watch_epoch() {
            return Step::Close;
        }
        if shared.is_down(&self.user_agent) {
            return Step::Broken;
        }
        store.now = shared.now();
        if let Some(wait) = shared.watch_lag(&self.user_agent, &self.resource.id, store.now) {
            return Step::Wait(Some(wait));
        }
        if self.initial {
            self.initial = false;
            self.position = store.revision;
            if let Err(error) = self.send_initial(&store) {
                return Step::Last(error_frame(&error));
            }
            self.ready.push(self.bookmark(true));
            return Step::Send(self.ready.remove(0));
        }
        self.drain(&store)
    }

    fn drain(&mut self, store: &Store) -> Step {
        if self.position >= store.revision {
            return Step::Wait(None);
        }
        let Some(changes) = store.history.after(&self.resource.id, self.position) else {
            return Step::Last(error_frame(&too_old(self.position, store.revision)));
        };
        let mut bytes = Vec::new();
        let mut position = self.position;
        for change in changes {
            position = change.revision;
            if *change.resource == *self.resource.id {
                self.write_event(change, store.now, &mut bytes);
            }
            if bytes.len() >= FRAME_BYTES {
                break;
            }
        }
        self.position = position;
        if bytes.is_empty() { Step::Wait(None) } else { Step::Send(Bytes::from(bytes)) }
    }

    /// Writes a change as this watch sees it: objects that enter its selection are ADDED, those
    /// that leave it DELETED.
    fn write_event(&self, change: &Change, now: Timestamp, into: &mut Vec<u8>) {
        let key = &change.key;
        if self.namespace.as_deref().is_some_and(|namespace| namespace != namespace_of(key)) {
            return;
        }
        let selects = |entry: &crate::store::Entry| {
            entry.matches(&self.resource, key, &self.options.labels, &self.options.fields)
        };
        let before = change.old.as_deref().is_some_and(selects);
        let after = change.kind != ChangeKind::Deleted && selects(&change.new);
        let kind = match (before, after) {
            (true, true) => "MODIFIED",
            (false, true) => "ADDED",
            (false, false) => return,
            (true, false) => {
                let object = if change.kind == ChangeKind::Deleted {
                    crate::read::render(&change.new, &self.resource, self.view, now)
                } else {
                    self.left_selection(change, now)
                };
                frame("DELETED", &object, into);
                return;
            }
        };
        let object = crate::read::render(&change.new, &self.resource, self.view, now);
        frame(kind, &object, into);
    }

    /// The old object with the revision of the write that removed it from the selection.
    fn left_selection(&self, change: &Change, now: Timestamp) -> Bytes {
        let entry = change.old.as_deref().unwrap_or(&change.new);
        let mut value: Value = value_as(entry, &self.resource);
        set_meta(&mut value, "resourceVersion", change.revision.to_string());
        crate::read::render_value(&value, &self.resource, self.view, now)
    }

    /// The frames of the watch until its timeout.
    pub(crate) fn into_stream(self) -> impl Stream<Item = Result<Bytes, std::io::Error>> + Send {
        let seconds = self.options.timeout_seconds.unwrap_or(DEFAULT_TIMEOUT_SECONDS);
        let end = Box::pin(tokio::time::sleep(Duration::from_secs(seconds)));
        let bookmark = Box::pin(tokio::time::sleep(BOOKMARK_PERIOD));
        futures::stream::unfold(Some((self, end, bookmark)), |state| async move {
            let (mut watch, mut end, mut bookmark) = state?;
            loop {
                let notify = watch.notify.clone();
                let woken = notify.notified();
                tokio::pin!(woken);
                // Registers for notifications before checking, so that no write in between is
                // missed.
                woken.as_mut().enable();
                let wait = match watch.step() {
                    Step::Send(bytes) => return Some((Ok(bytes), Some((watch, end, bookmark)))),
                    Step::Last(bytes) => return Some((Ok(bytes), None)),
                    Step::Close => return None,
                    Step::Broken => return Some((Err(crate::faults::refused()), None)),
                    Step::Wait(wait) => wait.unwrap_or(Duration::MAX),
                };
                let lag = async {
                    if wait == Duration::MAX {
                        std::future::pending::<()>().await;
                    }
                    tokio::time::sleep(wait).await;
                };
                tokio::select! {
                    biased;
                    () = &mut woken => {}
                    () = &mut end => {
                        // As on the real server, so that the next watch resumes from a recent
                        // revision.
                        let last = watch.closing_bookmark();
                        return last.map(|bytes| (Ok(bytes), None));
                    }
                    () = lag => {}
                    () = &mut bookmark => {
                        bookmark = Box::pin(tokio::time::sleep(BOOKMARK_PERIOD));
                        if let Some(bytes) = watch.closing_bookmark() {
                            return Some((Ok(bytes), Some((watch, end, bookmark))));
                        }
                    }
                }
            }
        })
    }

    /// A bookmark at the store's revision, if the caller accepts bookmarks and no events are held
    /// back.
    fn closing_bookmark(&mut self) -> Option<Bytes> {
        if !self.options.bookmarks || self.initial {
            return None;
        }
        let shared = self.shared.clone();
        let store = shared.lock();
        let lags = shared.watch_lag(&self.user_agent, &self.resource.id, shared.now()).is_some();
        if !lags && self.ready.is_empty() {
            // The previous step found nothing up to this revision, under this lock or an earlier
            // one.
            let pending =
                store.history.after(&self.resource.id, self.position).is_none_or(|mut changes| {
                    changes.any(|change| *change.resource == *self.resource.id)
                });
            if !pending {
                self.position = self.position.max(store.revision);
            }
        }
        Some(self.bookmark(false))
    }
}
