//! One bundle while it is read, wherever it is.

use std::{collections::BTreeMap, path::PathBuf};

use ::http::Uri;
use bytes::{Buf as _, Bytes};

use super::{
    Head, Limits, Location,
    http::{Ask, Http, Range, Stream},
    limits::Bucket,
    local::{self, Piece},
    registry::Registry,
};
use crate::{
    digest::Digest,
    error::Error,
    layout::{self, BLOCK},
    manifest::{Blob, MAX_MANIFEST_BYTES},
};

/// [`BLOCK`], as a length.
const BLOCK_LEN: usize = 512;

/// One bundle while it is read.
pub(crate) struct Session {
    location: Location,
    bucket: Bucket,
    kind: Kind,
}

enum Kind {
    Folder(PathBuf),
    Tar { path: PathBuf, offsets: Offsets },
    Http { http: Http, base: Uri },
    HttpTar { http: Http, uri: Uri, offsets: Offsets },
    Registry(Box<Registry>),
}

/// Where contents start in a tar.
type Offsets = BTreeMap<Digest, u64>;

impl Session {
    /// Gets ready to read; nothing is asked for yet.
    pub(crate) fn open(location: &Location, limits: &Limits) -> Result<Self, Error> {
        let offsets = Offsets::new();
        let (kind, rate) = match location {
            Location::Path(path) => {
                let kind = if local::is_folder(path)? {
                    Kind::Folder(path.clone())
                } else {
                    Kind::Tar { path: path.clone(), offsets }
                };
                // A path is no download.
                (kind, None)
            }
            Location::HttpFolder(uri) => {
                let (http, base) = (Http::new(limits)?, uri.clone());
                (Kind::Http { http, base }, limits.bytes_per_second)
            }
            Location::HttpTar(uri) => {
                let (http, uri) = (Http::new(limits)?, uri.clone());
                (Kind::HttpTar { http, uri, offsets }, limits.bytes_per_second)
            }
            Location::Registry(reference) => {
                let registry = Box::new(Registry::new(reference, limits)?);
                (Kind::Registry(registry), limits.bytes_per_second)
            }
        };
        Ok(Self { location: location.clone(), bucket: Bucket::new(rate), kind })
    }

    /// Where the bundle is.
    pub(crate) fn location(&self) -> &Location {
        &self.location
    }

    /// What slows the download down.
    pub(crate) fn bucket(&mut self) -> &mut Bucket {
        &mut self.bucket
    }

    /// Reads manifest and signature, both of bounded size.
    pub(crate) async fn head(&mut self) -> Result<(Vec<u8>, String), Error> {
        let (manifest, signature) = if matches!(self.kind, Kind::Tar { .. } | Kind::HttpTar { .. })
        {
            let manifest = self.tar_entry(0, layout::MANIFEST, MAX_MANIFEST_BYTES).await?;
            let size = manifest.len() as u64;
            let at = BLOCK + size + layout::padding(size);
            let limit = layout::MAX_SIGNATURE_BYTES;
            (manifest, self.tar_entry(at, layout::SIGNATURE, limit).await?)
        } else {
            let manifest = self.named(layout::MANIFEST, MAX_MANIFEST_BYTES).await?;
            let limit = layout::MAX_SIGNATURE_BYTES;
            (manifest, self.named(layout::SIGNATURE, limit).await?)
        };
        // A signature that is no text is none of any key.
        Ok((manifest, String::from_utf8_lossy(&signature).into_owned()))
    }

    /// Takes from the head where contents stand.
    pub(crate) fn lay_out(&mut self, head: &Head) {
        let sizes = (head.manifest_bytes.len() as u64, head.signature.len() as u64);
        match &mut self.kind {
            Kind::Tar { offsets, .. } | Kind::HttpTar { offsets, .. } => {
                *offsets = layout::offsets(&head.manifest, sizes.0, sizes.1);
            }
            Kind::Folder(_) | Kind::Http { .. } | Kind::Registry(_) => {}
        }
    }

    /// Starts reading a content, from that byte on or from an earlier one.
    pub(crate) async fn blob(
        &mut self,
        blob: &Blob,
        from: u64,
        file: &str,
    ) -> Result<Download, Error> {
        let path = layout::blob_path(&blob.sha256);
        let mut download = Download {
            file: file.to_owned(),
            at: from,
            size: blob.size,
            pending: Bytes::new(),
            body: Body::Nothing,
        };
        // Asking for no bytes is an error to some servers.
        if from >= blob.size {
            return Ok(download);
        }
        match &mut self.kind {
            Kind::Folder(folder) => {
                download.body =
                    Body::Piece(local::open(&folder.join(path), file, blob.size, from).await?);
            }
            Kind::Http { http, base } => {
                let ask = Ask::range(from, blob.size);
                download.answered(http.open(&join(base, &path)?, &ask).await?)?;
            }
            Kind::Registry(registry) => {
                let stream = registry.blob(&blob.sha256, Range::new(from, blob.size)).await?;
                download.answered(stream)?;
            }
            Kind::Tar { .. } | Kind::HttpTar { .. } => {
                let start = self.offset(&blob.sha256)?;
                if from == 0 {
                    download.body = self.tar_body(start - BLOCK, BLOCK + blob.size, file).await?;
                    download.size += BLOCK;
                    let header = download.take(BLOCK_LEN).await?;
                    self.check_header(&header, &path, blob.size)?;
                    download.size -= BLOCK;
                    download.at -= BLOCK;
                } else {
                    download.body = self.tar_body(start + from, blob.size - from, file).await?;
                }
            }
        }
        Ok(download)
    }

    fn offset(&self, digest: &Digest) -> Result<u64, Error> {
        let (Kind::Tar { offsets, .. } | Kind::HttpTar { offsets, .. }) = &self.kind else {
            return Err(self.missing(digest.as_str()));
        };
        let offset = offsets.get(digest).copied();
        offset.ok_or_else(|| self.missing(digest.as_str()))
    }

    fn missing(&self, what: &str) -> Error {
        Error::Missing { what: format!("{what} of {}", self.location) }
    }

    /// A file at the top of a folder or of an artifact.
    async fn named(&mut self, name: &str, limit: u64) -> Result<Vec<u8>, Error> {
        let file = format!("{name} of {}", self.location);
        let mut download = Download::unknown(file.clone(), limit);
        match &mut self.kind {
            Kind::Folder(folder) => {
                let (piece, size) = local::open_small(&folder.join(name), &file, limit).await?;
                (download.body, download.size) = (Body::Piece(piece), size);
            }
            Kind::Http { http, base } => {
                let stream = http.open(&join(base, name)?, &Ask::default()).await?;
                download.sized(stream, limit)?;
            }
            Kind::Registry(registry) => {
                let stream = registry.named(name).await?;
                download.sized(stream, limit)?;
            }
            Kind::Tar { .. } | Kind::HttpTar { .. } => return Err(self.missing(name)),
        }
        download.all(limit).await
    }

    /// A file of a tar whose header is at that byte.
    async fn tar_entry(&mut self, at: u64, name: &str, limit: u64) -> Result<Vec<u8>, Error> {
        let file = format!("{name} of {}", self.location);
        let mut download = Download::unknown(file.clone(), BLOCK);
        download.body = self.tar_body(at, BLOCK, &file).await?;
        let header = download.take(BLOCK_LEN).await?;
        let size = layout::size_in_header(&header, name).ok_or_else(|| self.no_tar(name))?;
        if size > limit {
            return Err(Error::Large { file, limit });
        }
        let mut download = Download::unknown(file.clone(), size);
        if size > 0 {
            download.body = self.tar_body(at + BLOCK, size, &file).await?;
        }
        download.all(limit).await
    }

    async fn tar_body(&mut self, at: u64, length: u64, file: &str) -> Result<Body, Error> {
        match &mut self.kind {
            Kind::Tar { path, .. } => {
                let piece = local::open_at(path, file, at, length).await?;
                Ok(Body::Piece(piece))
            }
            Kind::HttpTar { http, uri, .. } => {
                let stream = http.open(uri, &Ask::range(at, at + length)).await?;
                if stream.start == at && stream.length.is_none_or(|found| found == length) {
                    return Ok(Body::Stream(stream));
                }
                Err(Error::Answer {
                    url: self.location.to_string(),
                    problem: "it knows no byte ranges, which a tar needs: serve the folder instead"
                        .to_owned(),
                })
            }
            Kind::Folder(_) | Kind::Http { .. } | Kind::Registry(_) => Ok(Body::Nothing),
        }
    }

    fn check_header(&self, header: &[u8], name: &str, size: u64) -> Result<(), Error> {
        match layout::size_in_header(header, name) {
            Some(found) if found == size => Ok(()),
            _ => Err(self.no_tar(name)),
        }
    }

    fn no_tar(&self, name: &str) -> Error {
        let location = &self.location;
        Error::Missing {
            what: format!(
                "{name} where `refit bundle build` puts it in {location} (a tar that was packed anew has to be unpacked first)"
            ),
        }
    }
}

/// A URL below another.
fn join(base: &Uri, path: &str) -> Result<Uri, Error> {
    let text = format!("{base}{path}");
    text.parse().map_err(|_| Error::Location { location: text, problem: "it is no URL".to_owned() })
}

/// A file while it is read.
pub(crate) struct Download {
    file: String,
    /// The next byte.
    at: u64,
    size: u64,
    pending: Bytes,
    body: Body,
}

enum Body {
    Nothing,
    Piece(Piece),
    Stream(Stream),
}

impl Download {
    fn unknown(file: String, size: u64) -> Self {
        Self { file, at: 0, size, pending: Bytes::new(), body: Body::Nothing }
    }

    /// The byte that the next chunk starts with.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// Takes what a server answered to the range from `self.at` on: that, or all of it.
    fn answered(&mut self, stream: Stream) -> Result<(), Error> {
        if stream.start != self.at && stream.start != 0 {
            return Err(Error::Answer {
                url: self.file.clone(),
                problem: format!("it starts at byte {}, not {}", stream.start, self.at),
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

    /// Takes a whole answer of up to that size.
    fn sized(&mut self, stream: Stream, limit: u64) -> Result<(), Error> {
        self.size = stream.length.unwrap_or(limit);
        if self.size > limit {
            let file = self.file.clone();
            return Err(Error::Large { file, limit });
        }
        self.body = Body::Stream(stream);
        Ok(())
    }

    /// The next bytes; `None` at the end.
    pub(crate) async fn chunk(&mut self, bucket: &mut Bucket) -> Result<Option<Bytes>, Error> {
        let chunk = if self.pending.is_empty() {
            match &mut self.body {
                Body::Nothing => None,
                Body::Piece(piece) => piece.chunk(bucket).await?,
                Body::Stream(stream) => match stream.chunk().await {
                    Ok(chunk) => chunk,
                    Err(reason) => return Err(self.torn(reason)),
                },
            }
        } else {
            Some(std::mem::take(&mut self.pending))
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

    /// Whether the end came where it belongs.
    pub(crate) fn check_whole(&self) -> Result<(), Error> {
        if self.at == self.size {
            return Ok(());
        }
        Err(match &self.body {
            Body::Stream(_) => self.torn("the connection ended".to_owned()),
            Body::Piece(_) | Body::Nothing => {
                Error::Size { file: self.file.clone(), expected: self.size, found: self.at }
            }
        })
    }

    fn torn(&self, reason: String) -> Error {
        Error::Torn { file: self.file.clone(), found: self.at, expected: self.size, reason }
    }

    /// Exactly so many bytes; what came with them waits.
    async fn take(&mut self, length: usize) -> Result<Vec<u8>, Error> {
        let mut bucket = Bucket::new(None);
        let mut taken = Vec::with_capacity(length);
        while taken.len() < length {
            let Some(mut chunk) = self.chunk(&mut bucket).await? else {
                self.check_whole()?;
                return Err(Error::Size {
                    file: self.file.clone(),
                    expected: length as u64,
                    found: taken.len() as u64,
                });
            };
            let wanted = (length - taken.len()).min(chunk.len());
            taken.extend_from_slice(&chunk.split_to(wanted));
            if chunk.has_remaining() {
                self.at -= chunk.len() as u64;
                self.pending = chunk;
            }
        }
        Ok(taken)
    }

    /// All of it, up to that size.
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
        debug_assert!(bytes.len() as u64 <= limit, "each chunk was counted");
        if exact {
            self.check_whole()?;
        }
        Ok(bytes)
    }
}
