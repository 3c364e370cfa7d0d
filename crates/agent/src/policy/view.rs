//! What a judgement about a step reads of the host.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::host::{Site, home_of};

/// What a judgement reads of the host.
pub(crate) trait HostView {
    /// The path without symbolic links. Of a path that does not exist, the existing part is resolved.
    fn resolved(&self, path: &Path) -> PathBuf;

    /// Home directory of a user that exists.
    fn home(&self, user: &str) -> Option<String>;
}

impl HostView for Site {
    fn resolved(&self, path: &Path) -> PathBuf {
        let real = |there: &Path| fs::canonicalize(self.path(there)).ok();
        let found = path.ancestors().find_map(|there| Some((there, real(there)?)));
        let Some((there, real)) = found else {
            return path.to_owned();
        };
        let real = match path.strip_prefix(there) {
            Ok(rest) if !rest.as_os_str().is_empty() => real.join(rest),
            Ok(_) | Err(_) => real,
        };
        // A link may lead out of the root of a test.
        let inside = fs::canonicalize(self.path("/")).ok().and_then(|root| {
            real.strip_prefix(root).ok().map(|inside| Path::new("/").join(inside))
        });
        inside.unwrap_or(real)
    }

    fn home(&self, user: &str) -> Option<String> {
        home_of(self, user)
    }
}
