//! Container images, fetched before the host is disrupted.

use refit_kinds::refit::ImageArgs;
use refit_kinds::version::KubernetesVersion;

use super::{Program, Site, work::WorkError};

/// The kubelet's namespace in containerd.
const NAMESPACE: &str = "k8s.io";
/// containerd's configuration of registry mirrors.
const MIRRORS: &str = "/etc/containerd/certs.d";

/// Fetches images into the container runtime. Existing images are left alone.
pub(super) async fn preload(
    site: &Site,
    version: Option<&KubernetesVersion>,
    args: &ImageArgs,
) -> Result<(), WorkError> {
    match fetch(site, version, args).await {
        Err(error) if args.optional => {
            site.log_and_go_on(&format!("leaving the images to kubeadm: {error}"));
            Ok(())
        }
        outcome => outcome,
    }
}

async fn fetch(
    site: &Site,
    version: Option<&KubernetesVersion>,
    args: &ImageArgs,
) -> Result<(), WorkError> {
    for image in wanted(site, version, args).await? {
        if is_there(site, &image).await? {
            continue;
        }
        match pull(site, &image).await {
            // The other images are still useful.
            Err(error) if args.optional => {
                site.log_and_go_on(&format!("leaving {image} to kubeadm: {error}"));
            }
            outcome => outcome?,
        }
    }
    Ok(())
}

/// Imports images from an archive: the output of `docker save`, or a tar file of an OCI layout.
pub(super) async fn import(site: &Site, archive: &std::path::Path) -> Result<(), WorkError> {
    let archive = archive.display().to_string();
    let arguments = ["--namespace", NAMESPACE, "images", "import", &archive];
    site.run(&site.call(Program::Ctr, arguments)).await?;
    Ok(())
}

/// Whether the runtime has all of these images.
pub(super) async fn are_there(site: &Site, names: &[String]) -> Result<bool, WorkError> {
    for name in names {
        if !is_there(site, name).await? {
            return Ok(false);
        }
    }
    Ok(true)
}

async fn wanted(
    site: &Site,
    version: Option<&KubernetesVersion>,
    args: &ImageArgs,
) -> Result<Vec<String>, WorkError> {
    let mut images = args.names.clone();
    if let (true, Some(version)) = (args.kubeadm, version) {
        let mut call = site.call(
            Program::Kubeadm,
            // Always with a version: without one kubeadm queries the Internet.
            ["config", "images", "list", "--kubernetes-version", &version.to_string()],
        );
        if !args.repository.is_empty() {
            call.arguments.push(format!("--image-repository={}", args.repository));
        }
        let list = call.output().await?;
        images.extend(list.lines().map(str::trim).filter(|l| !l.is_empty()).map(str::to_owned));
    }
    match images.iter().find(|image| !is_image(image)) {
        Some(bad) => Err(WorkError::permanent(format!("invalid image name {bad:?}"))),
        None => Ok(images),
    }
}

fn is_image(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"./:@_-".contains(&b))
}

async fn is_there(site: &Site, image: &str) -> Result<bool, WorkError> {
    if site.has(Program::Crictl) {
        return Ok(site.ask(Program::Crictl, ["inspecti", "--quiet", image]).await.is_ok());
    }
    let filter = format!("name=={image}");
    let arguments = ["--namespace", NAMESPACE, "images", "list", "--quiet", &filter];
    let found = site.ask(Program::Ctr, arguments).await?;
    Ok(found.lines().any(|line| line.trim() == image))
}

async fn pull(site: &Site, image: &str) -> Result<(), WorkError> {
    // Pulled by the runtime itself if possible: it has the credentials and mirrors of registries.
    let call = if site.has(Program::Crictl) {
        site.call(Program::Crictl, ["pull", image])
    } else {
        let mut arguments = vec!["--namespace", NAMESPACE, "images", "pull"];
        // Unlike other clients, ctr does not read this directory by default.
        if site.path(MIRRORS).is_dir() {
            arguments.extend(["--hosts-dir", MIRRORS]);
        }
        arguments.push(image);
        site.call(Program::Ctr, arguments)
    };
    site.run(&call).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;
    use crate::host::site::Tool;

    /// A host whose crictl has the images listed in a file, and whose kubeadm lists two images.
    fn site() -> (tempfile::TempDir, Site) {
        let directory = tempfile::tempdir().unwrap();
        let mut site = Site::at(directory.path().join("root"), directory.path());
        let have = directory.path().join("have");
        fs::write(&have, "registry.k8s.io/pause:3.10\n").unwrap();
        let have = have.display();
        let crictl = format!(
            "#!/bin/sh\ncase $1 in inspecti) grep -qx \"$3\" {have};; pull) echo \"$2\" >> {have};; esac\n"
        );
        let kubeadm = "#!/bin/sh\necho \"registry.k8s.io/kube-proxy:$5\"\n\
                       echo registry.k8s.io/pause:3.10\n";
        for (program, name, text) in
            [(Program::Crictl, "crictl", crictl.as_str()), (Program::Kubeadm, "kubeadm", kubeadm)]
        {
            let path = directory.path().join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            let tool = Tool { path: path.display().to_string(), ..Tool::default() };
            site = site.with_tool(program, tool);
        }
        (directory, site)
    }

    #[tokio::test]
    async fn only_what_is_not_there_is_pulled() {
        let (directory, site) = site();
        let version = "v1.35.0".parse::<KubernetesVersion>().unwrap();
        let args = ImageArgs {
            names: vec!["app.example/web:1".to_owned()],
            kubeadm: true,
            ..ImageArgs::default()
        };
        let all = wanted(&site, Some(&version), &args).await.unwrap();
        assert!(!are_there(&site, &all).await.unwrap());
        preload(&site, Some(&version), &args).await.unwrap();
        let have = fs::read_to_string(directory.path().join("have")).unwrap();
        assert_eq!(
            have,
            "registry.k8s.io/pause:3.10\napp.example/web:1\nregistry.k8s.io/kube-proxy:v1.35.0\n"
        );
        assert!(are_there(&site, &all).await.unwrap());
    }

    #[tokio::test]
    async fn ctr_uses_the_mirrors_and_skips_a_missing_optional_image() {
        let (directory, site) = site();
        let calls = directory.path().join("calls");
        let shown = calls.display();
        let ctr = directory.path().join("ctr");
        let text = format!(
            "#!/bin/sh\ncase \"$*\" in *pull*) echo \"$*\" >> {shown}; case \"$*\" in *none*) exit 1;; esac;; esac\n"
        );
        fs::write(&ctr, text).unwrap();
        fs::set_permissions(&ctr, fs::Permissions::from_mode(0o755)).unwrap();
        let tool = |path: &str| Tool { path: path.to_owned(), ..Tool::default() };
        let site = site
            .with_tool(Program::Crictl, tool("/no/such/program"))
            .with_tool(Program::Ctr, tool(&ctr.display().to_string()));
        fs::create_dir_all(site.path(MIRRORS)).unwrap();
        let args = ImageArgs {
            names: vec!["a.example/none:1".to_owned(), "a.example/web:1".to_owned()],
            optional: true,
            ..ImageArgs::default()
        };
        preload(&site, None, &args).await.unwrap();
        let pull = format!("--namespace k8s.io images pull --hosts-dir {MIRRORS}");
        assert_eq!(
            fs::read_to_string(&calls).unwrap(),
            format!("{pull} a.example/none:1\n{pull} a.example/web:1\n")
        );
        let strict = ImageArgs { optional: false, ..args };
        preload(&site, None, &strict).await.unwrap_err();
    }

    #[test]
    fn only_names_of_images_reach_a_command_line() {
        assert!(is_image("registry.k8s.io:5000/a/b@sha256:00"));
        for bad in ["", "-x", "a b", "a;b", "$(x)"] {
            assert!(!is_image(bad), "{bad:?}");
        }
    }

    #[tokio::test]
    async fn only_optional_images_are_left_to_kubeadm() {
        let (_directory, site) = site();
        let nothing = |program| (program, "/no/such/program".to_owned());
        let site = [nothing(Program::Crictl), nothing(Program::Ctr)]
            .into_iter()
            .fold(site, |site, (program, path)| {
                site.with_tool(program, Tool { path, ..Tool::default() })
            });
        let mut args = ImageArgs {
            names: vec!["registry.k8s.io/pause:3.10".to_owned()],
            ..ImageArgs::default()
        };
        assert!(preload(&site, None, &args).await.is_err());
        args.optional = true;
        preload(&site, None, &args).await.unwrap();
    }
}
