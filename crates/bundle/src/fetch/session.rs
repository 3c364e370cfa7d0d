//! One bundle that is being read, from any location.

use std::path::PathBuf;

use ::http::Uri;
use bytes::Bytes;

use super::{
    Limits, Location,
    http::{Http, Range, RequestOptions, Stream},
    limits::Bucket,
    local::{self, Piece},
    registry::Registry,
};
use crate::{
    error::Error,
    layout,
    manifest::{Blob, MAX_MANIFEST_BYTES},
};

/// One bundle that is being read.
pub(crate) struct Session {
    location: Location,
    bucket: Bucket,
    kind: Kind,
}

enum Kind {
    Directory(PathBuf),
    Http { http: Box<Http>, base: Uri },
    Registry(Box<Registry>),
}

impl Session {
    /// Prepares the session; sends no request yet.
    pub(crate) fn open(location: &Location, limits: &Limits) -> Result<Self, Error> {
        let (kind, rate) = match location {
            Location::Path(path) => {
                local::check_directory(path)?;
                // Reading from a path is not a download.
                (Kind::Directory(path.clone()), None)
            }
            Location::Http(uri) => {
                let (http, base) = (Box::new(Http::new(limits)?), uri.clone());
                (Kind::Http { http, base }, limits.bytes_per_second)
            }
            Location::Registry(reference) => {
                let registry = Box::new(Registry::new(reference, limits)?);
                (Kind::Registry(registry), limits.bytes_per_second)
            }
        };
        Ok(Self { location: location.clone(), bucket: Bucket::new(rate), kind })
    }

    /// Returns the location of the bundle.
    pub(crate) fn location(&self) -> &Location {
        &self.location
    }

    /// Returns the rate limiter of the download.
    pub(crate) fn bucket(&mut self) -> &mut Bucket {
        &mut self.bucket
    }

    /// Reads the manifest and the signature, both with a size limit.
    pub(crate) async fn head(&mut self) -> Result<(Vec<u8>, String), Error> {
        let manifest = self.named(layout::MANIFEST, MAX_MANIFEST_BYTES).await?;
        let signature = self.named(layout::SIGNATURE, layout::MAX_SIGNATURE_BYTES).await?;
        // A signature that is not text fails verification with every key.
        Ok((manifest, String::from_utf8_lossy(&signature).into_owned()))
    }

    /// Starts reading a content at this offset or at an earlier one.
    pub(crate) async fn blob(
        &mut self,
        blob: &Blob,
        from: u64,
        file: &str,
    ) -> Result<Download, Error> {
        let path = layout::blob_path(&blob.sha256);
        let mut download =
            Download { file: file.to_owned(), at: from, size: blob.size, body: Body::Nothing };
        // Some servers answer a request for zero bytes with an error.
        if from >= blob.size {
            return Ok(download);
        }
        match &mut self.kind {
            Kind::Directory(directory) => {
                download.body =
                    Body::Piece(local::open(&directory.join(path), file, blob.size, from).await?);
            }
            Kind::Http { http, base } => {
                let options = RequestOptions::range(from, blob.size);
                download.answered(http.open(&join(base, &path)?, &options).await?)?;
            }
            Kind::Registry(registry) => {
                let stream = registry.blob(&blob.sha256, Range::new(from, blob.size)).await?;
                download.answered(stream)?;
            }
        }
        Ok(download)
    }

    /// Reads a file at the top level of a directory or artifact.
    async fn named(&mut self, name: &str, limit: u64) -> Result<Vec<u8>, Error> {
        let file = format!("{name} of {}", self.location);
        let mut download = Download::unknown(file.clone(), limit);
        match &mut self.kind {
            Kind::Directory(directory) => {
                let (piece, size) = local::open_small(&directory.join(name), &file, limit).await?;
                (download.body, download.size) = (Body::Piece(piece), size);
            }
            Kind::Http { http, base } => {
                let stream = http.open(&join(base, name)?, &RequestOptions::default()).await?;
                download.sized(stream, limit)?;
            }
            Kind::Registry(registry) => {
                let stream = registry.named(name).await?;
                download.sized(stream, limit)?;
            }
        }
        download.all(limit).await
    }
}

/// Appends a path to a URL.
fn join(base: &Uri, path: &str) -> Result<Uri, Error> {
    let text = format!("{base}{path}");
    text.parse().map_err(|_| Error::Url { url: text, problem: "not a URL".to_owned() })
}

/// A file that is being read.
pub(crate) struct Download {
    file: String,
    /// Offset of the next byte.
    at: u64,
    size: u64,
    body: Body,
}

enum Body {
    Nothing,
    Piece(Piece),
    Stream(Stream),
}

impl Download {
    fn unknown(file: String, size: u64) -> Self {
        Self { file, at: 0, size, body: Body::Nothing }
    }

    /// Returns the offset of the next chunk.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// Accepts the response to a request for the range from `self.at` on: that range, or the whole
    /// file.
    fn answered(&mut self, stream: Stream) -> Result<(), Error> {
        if stream.start != self.at && stream.start != 0 {
            return Err(Error::Answer {
                url: self.file.clone(),
                problem: format!(
                    "the response starts at byte {}, expected {}",
                    stream.start, self.at
                ),
            });
        }
        if let Some(length) = stream.length
            && stream.start.saturating_add(length) != self.size
        {
            return Err(Error::Size {
                file: self.file.clone(),
                expected: self.size,
                found: stream.start.saturating_add(length),
            });
        }
        self.at = stream.start;
        self.body = Body::Stream(stream);
        Ok(())
    }

    /// Accepts a complete response of at most `limit` bytes.
    fn sized(&mut self, stream: Stream, limit: u64) -> Result<(), Error> {
        self.size = stream.length.unwrap_or(limit);
        if self.size > limit {
            let file = self.file.clone();
            return Err(Error::Large { file, limit });
        }
        self.body = Body::Stream(stream);
        Ok(())
    }

    /// Returns the next chunk; `None` at the end.
    pub(crate) async fn chunk(&mut self, bucket: &mut Bucket) -> Result<Option<Bytes>, Error> {
        let chunk = match &mut self.body {
            Body::Nothing => None,
            Body::Piece(piece) => piece.chunk(bucket).await?,
            Body::Stream(stream) => match stream.chunk().await {
                Ok(chunk) => chunk,
                Err(reason) => return Err(self.torn(reason)),
            },
        };
        let Some(chunk) = chunk else {
            return Ok(None);
        };
        let after = self.at.saturating_add(chunk.len() as u64);
        if after > self.size {
            let (file, limit) = (self.file.clone(), self.size);
            return Err(Error::Large { file, limit });
        }
        bucket.take(chunk.len()).await;
        self.at = after;
        Ok(Some(chunk))
    }

    /// Checks that the file was received completely.
    pub(crate) fn check_whole(&self) -> Result<(), Error> {
        if self.at == self.size {
            return Ok(());
        }
        Err(match &self.body {
            Body::Stream(_) => self.torn("connection closed".to_owned()),
            Body::Piece(_) | Body::Nothing => {
                Error::Size { file: self.file.clone(), expected: self.size, found: self.at }
            }
        })
    }

    fn torn(&self, reason: String) -> Error {
        Error::Torn { file: self.file.clone(), found: self.at, expected: self.size, reason }
    }

    /// Reads the whole file, up to `limit` bytes.
    async fn all(mut self, limit: u64) -> Result<Vec<u8>, Error> {
        let exact = match &self.body {
            Body::Stream(stream) => stream.length.is_some(),
            Body::Piece(_) | Body::Nothing => true,
        };
        let mut bucket = Bucket::new(None);
        let mut bytes = Vec::new();
        while let Some(chunk) = self.chunk(&mut bucket).await? {
            bytes.extend_from_slice(&chunk);
        }
        debug_assert!(bytes.len() as u64 <= limit, "every chunk was counted before");
        if exact {
            self.check_whole()?;
        }
        Ok(bytes)
    }
}
