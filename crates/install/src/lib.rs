//! The manifests of an installation, and applying them.
//!
//! [`mod@manifests`] contains the files of `deploy/`, so that one binary can install Refit;
//! [`mod@apply`] applies them to a cluster. The applied objects are the printed ones.

pub mod apply;
pub mod manifests;

pub use apply::{Applied, InstallError, ObjectChange, apply};
pub use manifests::{
    Choices, Manifest, Part, ProgramSourceError, kubeadm_config, manifests, objects,
};
