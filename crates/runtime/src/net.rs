//! Dialling and listening, over TCP or in memory.
//!
//! A simulation uses no real sockets, because a paused clock jumps while a real socket waits. There
//! the same TLS and HTTP run over in-memory streams.

use std::{
    collections::BTreeMap,
    io,
    net::IpAddr,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::mpsc,
};

use crate::gate::{Fate, Gate};

/// How long a TCP stream may be quiet before the kernel probes the peer, and how often it does.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// How long a TCP peer may leave data or probes unacknowledged. A host that loses power closes no
/// stream: without this limit, a watch of it would stay open and silent for minutes.
const PEER_TIMEOUT: Duration = Duration::from_secs(20);
/// Capacity of an in-memory stream; a writer waits when it is full.
const STREAM_BYTES: usize = 256 * 1024;
/// Maximum number of connections that wait to be accepted.
const BACKLOG: usize = 1024;

/// A byte stream between a client and a server.
pub struct Stream {
    inner: Inner,
    /// Gate of the process that dialled.
    gate: Option<Arc<dyn Gate>>,
    /// Gate of the process that accepted, set only at its own end.
    acceptor: Option<Arc<dyn Gate>>,
    /// Whether the stream is half-open: shared by both ends of an in-memory stream.
    silent: Arc<AtomicBool>,
}

enum Inner {
    Tcp(TcpStream),
    Memory(DuplexStream),
}

impl Stream {
    fn memory(inner: DuplexStream, gate: &Arc<dyn Gate>, silent: &Arc<AtomicBool>) -> Self {
        Self {
            inner: Inner::Memory(inner),
            gate: Some(gate.clone()),
            acceptor: None,
            silent: silent.clone(),
        }
    }

    fn tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let socket = SockRef::from(&stream);
        let probes = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
        socket.set_tcp_keepalive(&probes)?;
        // Limits the time without an acknowledgement, of data as of probes.
        #[cfg(target_os = "linux")]
        socket.set_tcp_user_timeout(Some(PEER_TIMEOUT))?;
        Ok(Self { inner: Inner::Tcp(stream), gate: None, acceptor: None, silent: Arc::default() })
    }

    /// The address of the peer, if the stream is on TCP.
    pub fn peer(&self) -> Option<IpAddr> {
        match &self.inner {
            Inner::Tcp(stream) => stream.peer_addr().ok().map(|peer| peer.ip()),
            Inner::Memory(_) => None,
        }
    }

    fn dead(&self) -> bool {
        let dead = |gate: &Option<Arc<dyn Gate>>| {
            gate.as_ref().is_some_and(|gate| gate.fate() == Fate::Dead)
        };
        dead(&self.gate) || dead(&self.acceptor)
    }

    fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Relaxed)
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Stream")
    }
}

fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, "the peer process has exited")
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.dead() {
            return Poll::Ready(Err(gone()));
        }
        if self.is_silent() {
            return Poll::Pending;
        }
        match &mut self.inner {
            Inner::Tcp(s) => Pin::new(s).poll_read(cx, buf),
            Inner::Memory(s) => Pin::new(s).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.dead() {
            return Poll::Ready(Err(gone()));
        }
        if self.is_silent() {
            return Poll::Ready(Ok(data.len()));
        }
        match &mut self.inner {
            Inner::Tcp(s) => Pin::new(s).poll_write(cx, data),
            Inner::Memory(s) => Pin::new(s).poll_write(cx, data),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.inner {
            Inner::Tcp(s) => Pin::new(s).poll_flush(cx),
            Inner::Memory(s) => Pin::new(s).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.inner {
            Inner::Tcp(s) => Pin::new(s).poll_shutdown(cx),
            Inner::Memory(s) => Pin::new(s).poll_shutdown(cx),
        }
    }
}

/// Opens streams to `host:port`.
#[derive(Clone)]
pub enum Dialer {
    /// Over TCP.
    Tcp,
    /// To listeners of a [`MemoryNetwork`], for one incarnation of a process: once its gate reports
    /// it dead, both ends of all its streams fail.
    Memory(MemoryNetwork, Arc<dyn Gate>),
}

impl std::fmt::Debug for Dialer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Tcp => "Dialer::Tcp",
            Self::Memory(..) => "Dialer::Memory",
        })
    }
}

impl Dialer {
    /// Opens a stream.
    pub async fn dial(&self, host: &str, port: u16) -> io::Result<Stream> {
        match self {
            Self::Tcp => Stream::tcp(TcpStream::connect((host, port)).await?),
            Self::Memory(network, gate) => network.dial(host, port, gate).await,
        }
    }
}

/// Listeners by `host:port`, inside one process.
#[derive(Clone, Debug, Default)]
pub struct MemoryNetwork(Arc<Mutex<Network>>);

#[derive(Debug, Default)]
struct Network {
    listeners: BTreeMap<String, mpsc::Sender<Stream>>,
    /// For each open stream to `host:port`, whether it is half-open.
    streams: BTreeMap<String, Vec<Weak<AtomicBool>>>,
    /// Whether loopback addresses at which nothing listens here are dialled over TCP.
    reaches_loopback: bool,
}

impl MemoryNetwork {
    /// Listens at `host:port`, and replaces an earlier listener there.
    pub fn listen(&self, host: &str, port: u16) -> Listener {
        let (sender, receiver) = mpsc::channel(BACKLOG);
        self.lock().listeners.insert(format!("{host}:{port}"), sender);
        Listener { inner: ListenerInner::Memory(receiver), gate: None }
    }

    /// Listens at `host:port` as one of several, as the endpoints of a Service do. A dialled stream
    /// goes to the last live listener in the order of their names.
    pub fn join(&self, host: &str, port: u16, name: &str) -> Listener {
        let (sender, receiver) = mpsc::channel(BACKLOG);
        self.lock().listeners.insert(endpoint(host, port, name), sender);
        Listener { inner: ListenerInner::Memory(receiver), gate: None }
    }

    /// Removes one of several listeners.
    pub fn leave(&self, host: &str, port: u16, name: &str) {
        self.lock().listeners.remove(&endpoint(host, port, name));
    }

    /// Stops listening at `host:port`: further connections are refused.
    pub fn close(&self, host: &str, port: u16) {
        self.lock().listeners.remove(&format!("{host}:{port}"));
    }

    /// Makes the open streams to `host:port` half-open, as if the host lost power behind an address
    /// that another host takes over: whatever is written vanishes, and neither end sees an end. New
    /// streams work.
    pub fn silence(&self, host: &str, port: u16) {
        let streams = self.lock().streams.remove(&format!("{host}:{port}"));
        for stream in streams.iter().flatten().filter_map(Weak::upgrade) {
            stream.store(true, Ordering::Relaxed);
        }
    }

    /// From now on, streams to loopback addresses at which nothing listens here go over TCP: to real programs
    /// of the same machine.
    pub fn reach_loopback(&self) {
        self.lock().reaches_loopback = true;
    }

    async fn dial(&self, host: &str, port: u16, gate: &Arc<dyn Gate>) -> io::Result<Stream> {
        let is_loopback = host == "localhost"
            || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
        if is_loopback && self.lock().reaches_loopback && self.listener(host, port).is_none() {
            return Stream::tcp(TcpStream::connect((host, port)).await?);
        }
        let refused = || {
            io::Error::new(
                io::ErrorKind::ConnectionRefused,
                format!("nothing listens on {host}:{port}"),
            )
        };
        let sender = self.listener(host, port).ok_or_else(refused)?;
        let (near, far) = tokio::io::duplex(STREAM_BYTES);
        let silent = self.opened(host, port);
        sender.send(Stream::memory(far, gate, &silent)).await.map_err(|_| refused())?;
        Ok(Stream::memory(near, gate, &silent))
    }

    /// Records a new stream, and forgets those that were closed.
    fn opened(&self, host: &str, port: u16) -> Arc<AtomicBool> {
        let silent = Arc::default();
        let mut network = self.lock();
        let streams = network.streams.entry(format!("{host}:{port}")).or_default();
        streams.retain(|stream| stream.strong_count() > 0);
        streams.push(Arc::downgrade(&silent));
        silent
    }

    fn listener(&self, host: &str, port: u16) -> Option<mpsc::Sender<Stream>> {
        let network = self.lock();
        let listeners = &network.listeners;
        let alone = listeners.get(&format!("{host}:{port}"));
        let one_of = || {
            let first = endpoint(host, port, "");
            let endpoints = listeners.range(first.clone()..);
            endpoints
                .take_while(|(name, _)| name.starts_with(&first))
                .filter(|(_, sender)| !sender.is_closed())
                .map(|(_, sender)| sender)
                .last()
        };
        alone.or_else(one_of).cloned()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Network> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Key of one of several listeners.
fn endpoint(host: &str, port: u16, name: &str) -> String {
    format!("{host}:{port}#{name}")
}

/// Accepts streams.
pub struct Listener {
    inner: ListenerInner,
    gate: Option<Arc<dyn Gate>>,
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Listener").field(&self.inner).finish()
    }
}

#[derive(Debug)]
enum ListenerInner {
    Tcp(TcpListener),
    Memory(mpsc::Receiver<Stream>),
}

impl Listener {
    /// Listens on TCP.
    pub async fn tcp(address: std::net::SocketAddr) -> io::Result<Self> {
        Ok(Self { inner: ListenerInner::Tcp(TcpListener::bind(address).await?), gate: None })
    }

    /// Wraps a listener that is already bound.
    pub fn listening(listener: std::net::TcpListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self { inner: ListenerInner::Tcp(TcpListener::from_std(listener)?), gate: None })
    }

    /// Returns the listener for one incarnation of a process: once its gate reports it dead, it
    /// neither accepts nor responds.
    #[must_use]
    pub fn behind(mut self, gate: Arc<dyn Gate>) -> Self {
        self.gate = Some(gate);
        self
    }

    /// The local address, if the listener is on TCP.
    pub fn local_addr(&self) -> Option<std::net::SocketAddr> {
        match &self.inner {
            ListenerInner::Tcp(listener) => listener.local_addr().ok(),
            ListenerInner::Memory(_) => None,
        }
    }

    /// Waits for the next stream; `None` once no dialer is left.
    pub async fn accept(&mut self) -> Option<io::Result<Stream>> {
        let mut accepted = match &mut self.inner {
            ListenerInner::Tcp(listener) => {
                listener.accept().await.and_then(|(stream, _)| Stream::tcp(stream))
            }
            ListenerInner::Memory(receiver) => Ok(receiver.recv().await?),
        };
        if let Ok(stream) = &mut accepted {
            stream.acceptor.clone_from(&self.gate);
        }
        Some(accepted)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::gate::{Effect, Open};

    struct Switch(AtomicBool);

    impl Gate for Switch {
        fn before(&self, _: &Effect) -> Fate {
            self.fate()
        }
        fn after(&self, _: &Effect) -> Fate {
            self.fate()
        }
        fn fate(&self) -> Fate {
            if self.0.load(Ordering::SeqCst) { Fate::Dead } else { Fate::Alive }
        }
    }

    #[tokio::test]
    async fn the_kernel_ends_streams_to_a_peer_that_is_gone() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let Inner::Tcp(stream) = Dialer::Tcp.dial("127.0.0.1", port).await.unwrap().inner else {
            panic!("not on TCP")
        };
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), KEEPALIVE);
        assert_eq!(socket.tcp_keepalive_interval().unwrap(), KEEPALIVE);
        #[cfg(target_os = "linux")]
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(PEER_TIMEOUT));
    }

    #[tokio::test]
    async fn a_memory_network_reaches_real_programs_on_loopback_only_if_it_may() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let network = MemoryNetwork::default();
        let dialer = Dialer::Memory(network.clone(), Arc::new(Open));
        let refused = dialer.dial("127.0.0.1", port).await.unwrap_err();
        assert!(refused.to_string().contains("nothing listens"));
        network.reach_loopback();
        assert!(matches!(dialer.dial("127.0.0.1", port).await.unwrap().inner, Inner::Tcp(_)));
        let refused = dialer.dial("192.0.2.1", port).await.unwrap_err();
        assert!(refused.to_string().contains("nothing listens"));
    }

    #[tokio::test]
    async fn bytes_pass_between_both_ends() {
        let network = MemoryNetwork::default();
        let mut listener = network.listen("api", 6443);
        let mut near = Dialer::Memory(network, Arc::new(Open)).dial("api", 6443).await.unwrap();
        near.write_all(b"hello").await.unwrap();
        let mut far = listener.accept().await.unwrap().unwrap();
        let mut text = [0; 5];
        far.read_exact(&mut text).await.unwrap();
        assert_eq!(&text, b"hello");
    }

    #[tokio::test]
    async fn dialling_without_a_listener_is_refused() {
        let error = Dialer::Memory(MemoryNetwork::default(), Arc::new(Open))
            .dial("api", 1)
            .await
            .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[tokio::test]
    async fn a_live_listener_is_dialled_among_several() {
        let network = MemoryNetwork::default();
        let dialer = Dialer::Memory(network.clone(), Arc::new(Open));
        let mut a = network.join("hooks", 443, "a");
        let mut b = network.join("hooks", 443, "b");
        let mut near = dialer.dial("hooks", 443).await.unwrap();
        near.write_all(b"1").await.unwrap();
        assert!(b.accept().await.unwrap().is_ok());
        drop(b);
        dialer.dial("hooks", 443).await.unwrap();
        assert!(a.accept().await.unwrap().is_ok());
        network.leave("hooks", 443, "a");
        assert!(dialer.dial("hooks", 443).await.is_err());
    }

    #[tokio::test]
    async fn a_silenced_stream_swallows_bytes_and_never_ends() {
        let network = MemoryNetwork::default();
        let mut listener = network.listen("api", 6443);
        let dialer = Dialer::Memory(network.clone(), Arc::new(Open));
        let mut near = dialer.dial("api", 6443).await.unwrap();
        let mut far = listener.accept().await.unwrap().unwrap();
        network.silence("api", 6443);
        near.write_all(b"lost").await.unwrap();
        drop(near);
        let mut text = [0; 4];
        assert!(futures::poll!(std::pin::pin!(far.read(&mut text))).is_pending());

        let mut near = dialer.dial("api", 6443).await.unwrap();
        near.write_all(b"kept").await.unwrap();
        let mut far = listener.accept().await.unwrap().unwrap();
        far.read_exact(&mut text).await.unwrap();
        assert_eq!(&text, b"kept");
    }

    #[tokio::test]
    async fn bytes_from_a_killed_process_are_never_read() {
        let network = MemoryNetwork::default();
        let mut listener = network.listen("api", 6443);
        let switch = Arc::new(Switch(AtomicBool::new(false)));
        let mut near = Dialer::Memory(network, switch.clone()).dial("api", 6443).await.unwrap();
        near.write_all(b"DELETE everything").await.unwrap();
        switch.0.store(true, Ordering::SeqCst);
        let mut far = listener.accept().await.unwrap().unwrap();
        let mut text = [0; 5];
        assert_eq!(far.read(&mut text).await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    }

    #[tokio::test]
    async fn responses_of_a_killed_server_are_never_read() {
        let network = MemoryNetwork::default();
        let switch = Arc::new(Switch(AtomicBool::new(false)));
        let mut listener = network.listen("hooks", 443).behind(switch.clone());
        let mut near = Dialer::Memory(network, Arc::new(Open)).dial("hooks", 443).await.unwrap();
        let mut far = listener.accept().await.unwrap().unwrap();
        switch.0.store(true, Ordering::SeqCst);
        let error = far.write_all(b"Success").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        drop(far);
        let mut text = Vec::new();
        assert_eq!(near.read_to_end(&mut text).await.unwrap(), 0);
    }
}
