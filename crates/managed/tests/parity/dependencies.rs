//! The row of external dependencies.

use jiff::SignedDuration;
use refit_openshift::{
    Compat,
    dependencies::{self, Answer, Attempt, Next, Unavailable},
};

use crate::Row;

pub(crate) const ROWS: &[Row] = &[Row {
    number: 69,
    name: "a dependency is requested three times unless its answer is final",
    test: external_dependencies,
}];

fn external_dependencies() {
    let url = "https://api.example.com";
    let retry = |attempt: Attempt, answer: &Answer, jitter| match attempt.after(url, answer, jitter)
    {
        Next::Retry(delay, next) => (delay, next),
        other @ (Next::Available | Next::Unavailable(_)) => panic!("{other:?}"),
    };
    let unavailable = |answer: &Answer, attempts: u32| {
        let mut attempt = Attempt::FIRST;
        for _ in 1..attempts {
            attempt = retry(attempt, answer, 0.0).1;
        }
        match attempt.after(url, answer, 0.0) {
            Next::Unavailable(error) => error.to_string(),
            other @ (Next::Available | Next::Retry(..)) => panic!("{other:?}"),
        }
    };
    for status in [200, 204, 302, 399] {
        assert_eq!(Attempt::FIRST.after(url, &Answer::Status(status), 0.0), Next::Available);
    }
    for (answer, attempts, error) in [
        (Answer::Status(404), 1, "client error for https://api.example.com: 404"),
        (Answer::Status(499), 1, "client error for https://api.example.com: 499"),
        (Answer::Status(500), 3, "server error for https://api.example.com: 500"),
        (Answer::Status(503), 3, "server error for https://api.example.com: 503"),
        (
            Answer::Failed("timeout".into()),
            3,
            "client request error for https://api.example.com: timeout",
        ),
    ] {
        assert_eq!(unavailable(&answer, attempts), error);
    }
    let secret = "https://user:secret@api.example.com";
    let Next::Unavailable(shown) = Attempt::FIRST.after(secret, &Answer::Status(404), 0.0) else {
        panic!("404 is final");
    };
    assert_eq!(shown.to_string(), "client error for https://api.example.com: 404");
    let seconds = SignedDuration::from_millis;
    let failed = Answer::Status(503);
    for (jitter, delays) in [(0.0, [1000, 2000]), (1.0, [1500, 4500]), (0.5, [1250, 3125])] {
        let (first, attempt) = retry(Attempt::FIRST, &failed, jitter);
        let (second, attempt) = retry(attempt, &failed, jitter);
        assert_eq!([first, second], delays.map(seconds));
        assert_eq!(attempt.after(url, &Answer::Status(200), jitter), Next::Available);
    }
    let urls = [url.to_owned()];
    assert_eq!(dependencies::to_request(&urls, false), urls);
    assert!(dependencies::to_request(&urls, true).is_empty());
    let client = |status| Unavailable::Client { url: "u".to_owned(), status };
    for compat in [Compat::Repaired, Compat::Strict] {
        assert_eq!(dependencies::step_error(&[], compat), None, "without URLs the step is done");
    }
    let both = [client(401), client(404)];
    let last = "client error for u: 404".to_owned();
    assert_eq!(dependencies::step_error(&both, Compat::Strict).unwrap(), last);
    let error = dependencies::step_error(&both, Compat::Repaired).unwrap();
    let remedy = "restore each service, or correct extDependencyAvailabilityChecks.http.urls";
    assert_eq!(error, format!("client error for u: 401; {last}; {remedy}"));
    assert_eq!(dependencies::timeout(10, Compat::Repaired), Some(SignedDuration::from_secs(10)));
    assert_eq!(dependencies::timeout(10, Compat::Strict), None);
}
