//! Whether a request to OCM is repeated, as its SDK does it (`docs/facts/openshift-upgrades.md#providers`).

use jiff::SignedDuration;

/// How often a request is repeated.
const REPEATS: u32 = 5;
/// Half of the first delay.
const INTERVAL: SignedDuration = SignedDuration::from_secs(2);
/// The part by which a delay is shorter or longer at random.
const JITTER: f64 = 0.3;

/// What a request has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// An answer with this status of HTTP.
    Status(u16),
    /// There was no connection: OCM does not have the request.
    Unsent,
    /// The connection broke: OCM may have processed the request.
    Broken,
    /// There was no answer within the deadline.
    Late,
}

/// Whether OCM may get a request twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// It reads.
    Read,
    /// It writes: it is repeated only if it surely was not processed. The SDK never repeats it.
    Write,
}

/// After which delay a request is repeated that was already `repeated` so often, `None` if it is not. `random` is a number
/// from 0 to 1.
pub fn delay(
    request: Request,
    outcome: Outcome,
    repeated: u32,
    random: f64,
) -> Option<SignedDuration> {
    let is_repeated = match (outcome, request) {
        (Outcome::Status(429) | Outcome::Unsent, _)
        | (Outcome::Status(503) | Outcome::Broken, Request::Read) => true,
        (Outcome::Status(_) | Outcome::Broken | Outcome::Late, _) => false,
    };
    let jitter = JITTER * (1.0 - 2.0 * random.clamp(0.0, 1.0));
    (is_repeated && repeated < REPEATS)
        .then(|| (INTERVAL * (1 << (repeated + 1))).mul_f64(1.0 + jitter))
}
