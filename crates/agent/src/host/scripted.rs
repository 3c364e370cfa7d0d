//! A host for tests: a directory, with scripts for programs.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use super::{Program, Site, site::Tool};

/// A host in a temporary directory.
pub(crate) struct ScriptedHost {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) site: Site,
}

impl ScriptedHost {
    /// A host with these directories, whose agent has its state and the directory of its units.
    pub(crate) fn with_directories(paths: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let site = Site::at(directory.path().join("root"), directory.path().join("state"));
        for path in paths {
            fs::create_dir_all(site.path(path)).unwrap();
        }
        fs::create_dir_all(site.units()).unwrap();
        Self { directory, site }
    }

    /// Writes a file of the host.
    pub(crate) fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        fs::write(self.site.path(path), content).unwrap();
    }

    /// Writes an executable shell script next to the host's root, and returns its path.
    pub(crate) fn executable(&self, name: &str, script: &str) -> PathBuf {
        let path = self.directory.path().join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// Makes a program this shell script.
    pub(crate) fn script(&mut self, program: Program, script: &str) {
        let path = self.executable(&format!("{program:?}"), script);
        self.replace(program, &path);
    }

    /// Takes a program from the host, even if the machine of the test has it.
    pub(crate) fn without(&mut self, program: Program) {
        self.replace(program, Path::new("/no/such/program"));
    }

    fn replace(&mut self, program: Program, path: &Path) {
        let tool = Tool { path: path.display().to_string(), ..Tool::default() };
        self.site = self.site.clone().with_tool(program, tool);
    }

    /// The output of all programs, and the messages of the agent.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.site.state().join("host.log")).unwrap_or_default()
    }
}
