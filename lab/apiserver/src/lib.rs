//! An in-process Kubernetes API server for the sandbox and for simulation.
//!
//! [`ApiServer`] is a tower service: give it to `kube::Client::new`, or serve it with hyper. It
//! keeps objects in memory under one revision, with a history for resuming watches, and implements
//! Kubernetes' validation, defaults, server-side apply, status, finalizers, garbage collection and
//! eviction. Time and seeds come from its [`Options`], so the same requests produce the same
//! objects.
//!
//! It also serves what kubectl needs: tables (`table`), aggregated discovery (`discovery`), OpenAPI
//! v3 for explain, apply and dry runs (`openapi`), and bodies in protocol buffers (`protobuf`), the
//! only format of kubectl's typed clients.
//!
//! ```
//! use std::sync::Arc;
//!
//! use k8s_openapi::api::core::v1::Namespace;
//! use kube::api::{Api, ListParams};
//! use lab_apiserver::{ApiServer, Options};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), kube::Error> {
//! let noon = "2026-01-01T12:00:00Z".parse().expect("a time");
//! let server = ApiServer::new(Options::new(Arc::new(move || noon)));
//! let client = kube::Client::new(server.clone(), "default");
//! let namespaces = Api::<Namespace>::all(client).list(&ListParams::default()).await?;
//! assert_eq!(namespaces.items.len(), 4);
//! # Ok(())
//! # }
//! ```

mod admission;
mod answer;
pub mod apply;
pub mod auth;
mod builtin;
mod crd;
mod delete;
mod discovery;
mod error;
mod eviction;
mod faults;
mod gc;
mod history;
mod jsonpath;
mod object;
mod openapi;
mod patch;
mod path;
mod portforward;
mod protobuf;
mod read;
mod requests;
mod resources;
mod rules;
mod scale;
pub mod schema;
mod selector;
mod server;
mod snapshot;
mod store;
mod strategic;
mod strategic_keys;
mod table;
mod verbs;
mod watch;
mod write;

pub use error::ApiError;
pub use faults::{Down, FaultAction, FaultRule, Faults, StaleView};
pub use history::ChangeKind;
pub use portforward::{PodIdentity, PortHandler};
pub use requests::{ObservedRequest, RequestObserver};
pub use resources::{Registry, Resource};
pub use selector::{FieldSelector, LabelSelector};
pub use server::{AnswerBody, ApiServer, BoxError, ClockFn, Options};
pub use snapshot::StoreSnapshot;
pub use store::{Observer, StoreEvent, Webhook};
