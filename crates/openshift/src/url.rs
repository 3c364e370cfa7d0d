//! URLs of the configuration, in errors and logs.

use std::borrow::Cow;

/// A URL without the user name and password that it may have: as errors, conditions and logs show it. It is a new text exactly if
/// it has them.
pub fn without_credentials(url: &str) -> Cow<'_, str> {
    let (scheme, rest) = url.find("://").map_or(("", url), |at| url.split_at(at + "://".len()));
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let port = authority.rsplit_once(':').map_or("", |(_, port)| port);
    // A password may have a slash that is not encoded: what is before it is not a host with its port then.
    let is_host = !authority.contains('@') && port.bytes().all(|byte| byte.is_ascii_digit());
    match rest.rsplit_once('@').filter(|_| !is_host) {
        Some((_, shown)) => Cow::Owned(format!("{scheme}{shown}")),
        None => Cow::Borrowed(url),
    }
}
