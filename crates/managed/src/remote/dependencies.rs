//! URLs that must answer before an upgrade.

use futures::stream::{FuturesUnordered, StreamExt as _};
use jiff::SignedDuration;
use refit_openshift::{
    Compat,
    dependencies::{Answer, Attempt, Next, Unavailable, timeout},
};

use super::http::{Web, url};

pub(super) async fn unavailable(
    web: &Web,
    urls: &[String],
    limit: SignedDuration,
    compat: Compat,
) -> Vec<Unavailable> {
    let seconds = u32::try_from(limit.as_secs()).unwrap_or_default();
    let deadline = timeout(seconds, compat).map(SignedDuration::unsigned_abs);
    let asked = urls.iter().map(async |text| {
        let mut attempt = Attempt::FIRST;
        loop {
            let answer = match url(text) {
                Ok(url) => web.status(&url, deadline).await,
                Err(error) => Err(error),
            };
            let answer = match answer {
                Ok(status) => Answer::Status(status.as_u16()),
                Err(error) => Answer::Failed(error.why),
            };
            match attempt.after(text, &answer, fastrand::f64()) {
                Next::Available => return None,
                Next::Unavailable(why) => return Some(why),
                Next::Retry(delay, next) => {
                    tokio::time::sleep(delay.unsigned_abs()).await;
                    attempt = next;
                }
            }
        }
    });
    let found: Vec<Option<Unavailable>> = asked.collect::<FuturesUnordered<_>>().collect().await;
    found.into_iter().flatten().collect()
}
