//! containerd: it is ready when its socket is there.

use std::{
    env, fs, io,
    os::unix::net::{UnixDatagram, UnixListener},
    path::Path,
};

use crate::{Outcome, RUNTIME_SOCKET, answer, point, version};

pub(crate) fn run(arguments: &[&str]) -> Outcome {
    if arguments.contains(&"--version") {
        return answer(&format!("containerd containerd.io {} 0", version()));
    }
    point("containerd.start")?;
    let socket = Path::new(RUNTIME_SOCKET);
    fs::create_dir_all(socket.parent().unwrap_or(socket))?;
    match fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let listener = UnixListener::bind(socket)?;
    if let Some(service) = env::var_os("NOTIFY_SOCKET") {
        UnixDatagram::unbound()?.send_to(b"READY=1", service)?;
    }
    loop {
        // Nothing is asked of it: the kubelet only connects.
        drop(listener.accept()?);
    }
}
