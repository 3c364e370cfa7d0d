//! External dependencies: row 69.

use std::time::Duration;

use http::{HeaderValue, header::LOCATION};
use jiff::SignedDuration;
use lab_openshift::wire::Trouble;
use refit_openshift::{Compat, config::DependencyConfig, dependencies::Unavailable};

use crate::{
    bed::{Bed, reply},
    servers::ocm,
};

fn config() -> DependencyConfig {
    DependencyConfig { urls: Vec::new(), timeout: SignedDuration::from_secs(10) }
}

fn urls<const N: usize>(urls: [&str; N]) -> Vec<String> {
    urls.map(ToOwned::to_owned).to_vec()
}

#[tokio::test(start_paused = true)]
async fn a_server_error_is_asked_again_and_a_client_error_is_final() {
    let (bed, server) = (Bed::new().await, ocm());
    bed.serve(server.clone(), "a.example", 80);
    let remote = bed.remote(Compat::Repaired);
    let url = "http://a.example/x";
    let ask = async || remote.unavailable(&urls([url]), &config()).await;

    server.troubles().queue([Trouble::Status(500), Trouble::Lost, Trouble::Status(204)]);
    assert_eq!(ask().await, []);
    assert_eq!(server.troubles().asked().len(), 3);

    let start = bed.clock.now();
    server.troubles().set(Some(Trouble::Status(503)));
    assert_eq!(ask().await, [Unavailable::Server { url: url.to_owned(), status: 503 }]);
    let waited = bed.clock.elapsed(start).as_secs_f64();
    assert!((3.0..6.1).contains(&waited), "{waited}");
    server.troubles().set(Some(Trouble::Status(404)));
    let before = server.troubles().asked().len();
    assert_eq!(ask().await, [Unavailable::Client { url: url.to_owned(), status: 404 }]);
    assert_eq!(server.troubles().asked().len(), before + 1);
    assert!(bed.effects.take().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_request_has_the_configured_timeout_and_strict_none_of_its_own() {
    let (bed, server) = (Bed::new().await, ocm());
    bed.serve(server.clone(), "a.example", 80);
    server.troubles().set(Some(Trouble::Slow(Duration::from_secs(15))));
    let url = "http://a.example/api";
    let ask = async |compat| bed.remote(compat).unavailable(&urls([url]), &config()).await;
    let why = "no answer within 10 s".to_owned();
    assert_eq!(ask(Compat::Repaired).await, [Unavailable::Request { url: url.to_owned(), why }]);
    assert_eq!(server.troubles().asked().len(), 3);
    // The answer that comes later is that the token is missing.
    assert_eq!(
        ask(Compat::Strict).await,
        [Unavailable::Client { url: url.to_owned(), status: 401 }]
    );
    assert_eq!(server.troubles().asked().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn all_are_asked_at_once_and_redirects_are_followed_ten_times() {
    let bed = Bed::new().await;
    let received = bed.answer("a.example", 443, |one| {
        let number: u32 = one.line.rsplit('/').next().unwrap().parse().unwrap();
        if number == 0 {
            return reply(200, "");
        }
        let mut response = reply(302, "");
        let location = HeaderValue::try_from(format!("/r/{}", number - 1)).unwrap();
        response.headers_mut().insert(LOCATION, location);
        response
    });
    let remote = bed.remote(Compat::Repaired);
    assert_eq!(remote.unavailable(&urls(["https://a.example/r/10"]), &config()).await, []);
    assert_eq!(received.lock().unwrap().len(), 11);
    assert!(received.lock().unwrap().iter().all(|one| one.body.is_null()));
    let found = remote
        .unavailable(
            &urls(["https://nowhere.example/", "https://a.example/r/11", "no url"]),
            &config(),
        )
        .await;
    let text: Vec<String> = found.iter().map(ToString::to_string).collect();
    for part in ["nothing listens", "redirects more than 10 times", "invalid URL \"no url\""] {
        assert!(text.iter().any(|one| one.contains(part)), "{part}: {text:?}");
    }
}
