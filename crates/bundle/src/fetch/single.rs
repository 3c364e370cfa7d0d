//! Downloads one file outside of any bundle, with a known sha256, from an HTTP server.

use std::{
    fs,
    io::{self, Seek as _, Write as _},
    path::{Path, PathBuf},
};

use ::http::{StatusCode, Uri};

use super::{
    Limits,
    http::{Http, RequestOptions, Stream},
    limits::Bucket,
    store,
};
use crate::{
    digest::{Digest, Hasher},
    error::Error,
};

/// Downloads a file to `to`. The received bytes are kept in a partial file next to it until they
/// are complete and verified, so that another attempt resumes there. `to` itself never holds
/// anything else.
pub async fn file(url: &str, sha256: &Digest, to: &Path, limits: &Limits) -> Result<(), Error> {
    let uri = parse(url)?;
    let partial = partial_path(to);
    let (mut hasher, mut output, there) = open(&partial)?;
    if there > 0 && hasher.clone().finish() == *sha256 {
        return publish(&partial, to);
    }
    let http = Http::new(limits)?;
    let first = http.open(&uri, &options_from(there)).await;
    let mut stream = match first {
        // The file is shorter than what an earlier attempt received: it was replaced.
        Err(Error::Refused { status, .. })
            if there > 0 && status == StatusCode::RANGE_NOT_SATISFIABLE.as_u16() =>
        {
            http.open(&uri, &options_from(0)).await?
        }
        answer => answer?,
    };
    if stream.start != there {
        hasher = Hasher::default();
        let emptied = output.set_len(0).and_then(|()| output.rewind());
        emptied.map_err(|error| Error::written(&partial, error))?;
    }
    check_size(url, to, &stream, limits)?;
    let mut bucket = Bucket::new(limits.bytes_per_second);
    let (start, length) = (stream.start, stream.length);
    let mut at = start;
    let torn = |found, reason| Error::Torn {
        file: url.to_owned(),
        found,
        expected: length.map_or(0, |length| start.saturating_add(length)),
        reason,
    };
    loop {
        let chunk = stream.chunk().await.map_err(|reason| torn(at, reason))?;
        let Some(chunk) = chunk else { break };
        at = at.saturating_add(chunk.len() as u64);
        if at > limits.max_bytes {
            return Err(too_large(url, limits.max_bytes, at));
        }
        bucket.take(chunk.len()).await;
        hasher.update(&chunk);
        output.write_all(&chunk).map_err(|error| Error::written(&partial, error))?;
    }
    if length.is_some_and(|length| at != start.saturating_add(length)) {
        return Err(torn(at, "connection closed".to_owned()));
    }
    output.sync_all().map_err(|error| Error::written(&partial, error))?;
    let found = hasher.finish();
    if found != *sha256 {
        store::remove(&partial)?;
        return Err(Error::Content { file: url.to_owned(), expected: sha256.clone(), found });
    }
    publish(&partial, to)
}

fn parse(url: &str) -> Result<Uri, Error> {
    let refused = |problem: &str| Error::Url {
        url: super::location::without_password(url),
        problem: problem.to_owned(),
    };
    let uri: Uri = url.parse().map_err(|_| refused("not a URL"))?;
    match (uri.scheme_str(), uri.authority()) {
        (Some("http" | "https"), Some(authority)) if !authority.as_str().contains('@') => Ok(uri),
        (Some("http" | "https"), Some(_)) => {
            Err(refused("the URL must not contain credentials; put them into the credentials file"))
        }
        _ => Err(refused("expected an http:// or https:// URL of a file")),
    }
}

fn options_from(from: u64) -> RequestOptions {
    if from == 0 { RequestOptions::default() } else { RequestOptions::from(from) }
}

fn partial_path(to: &Path) -> PathBuf {
    let name = to.file_name().unwrap_or_default().to_string_lossy();
    to.with_file_name(format!(".{name}.partial"))
}

/// Opens and hashes the bytes of an earlier attempt, and returns the offset to resume at.
fn open(partial: &Path) -> Result<(Hasher, fs::File, u64), Error> {
    let written = |error| Error::written(partial, error);
    if let Some(directory) = partial.parent() {
        fs::create_dir_all(directory).map_err(|error| Error::written(directory, error))?;
    }
    let mut options = fs::OpenOptions::new();
    options.create(true).truncate(false).read(true).write(true);
    let mut file = store::no_follow(&mut options, 0o600).open(partial).map_err(written)?;
    if !file.metadata().map_err(written)?.is_file() {
        return Err(written(io::Error::other("not a regular file")));
    }
    let mut hasher = Hasher::default();
    let there = store::hash_into(&mut file, &mut hasher).map_err(written)?;
    Ok((hasher, file, there))
}

/// Checks, before the first byte is written, that the announced size fits on the disk.
fn check_size(url: &str, to: &Path, stream: &Stream, limits: &Limits) -> Result<(), Error> {
    let Some(length) = stream.length else {
        return Ok(());
    };
    let whole = stream.start.saturating_add(length);
    if whole > limits.max_bytes {
        return Err(too_large(url, limits.max_bytes, whole));
    }
    let directory = to.parent().unwrap_or(Path::new("/"));
    store::check_free(directory, length.saturating_add(limits.keep_free), 1)
}

fn too_large(url: &str, limit: u64, found: u64) -> Error {
    Error::Limit { location: url.to_owned(), limit, found }
}

fn publish(partial: &Path, to: &Path) -> Result<(), Error> {
    fs::rename(partial, to).map_err(|error| Error::written(to, error))?;
    store::sync_parent(to)
}
