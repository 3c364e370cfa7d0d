//! Which volumes of a host an update exchanges (`docs/facts/trident.md#volumes-of-an-ab-pair`).

use std::{collections::BTreeSet, path::Path};

use serde_json::Value;

use super::config::list;

/// The mount point of the A/B volume that a path is on; `None` if it is on a volume that both systems
/// share, or that Trident does not know. `mounts` is `/proc/self/mountinfo`, and the path has no links.
///
/// Volumes are compared by their device: a directory of a shared volume may be mounted below one that
/// is exchanged, and the other way round.
pub(super) fn exchanged_volume(config: &Value, mounts: &str, path: &Path) -> Option<String> {
    let mounts: Vec<(&str, &Path)> = mounts.lines().filter_map(mount).collect();
    let on = mounts.iter().filter(|(_, point)| path.starts_with(point));
    // The last of several mounts at one point hides the others.
    let (device, _) = on.max_by_key(|(_, point)| point.components().count())?;
    let exchanged = mount_points(config);
    let is_exchanged = |point: &Path| exchanged.iter().any(|known| point == Path::new(known));
    let volume = mounts.iter().find(|(other, point)| other == device && is_exchanged(point));
    volume.map(|(_, point)| point.display().to_string())
}

/// Device and mount point of a line of mountinfo.
fn mount(line: &str) -> Option<(&str, &Path)> {
    let mut fields = line.split(' ').skip(2);
    let device = fields.next()?;
    Some((device, Path::new(fields.nth(1)?)))
}

/// Mount points of file systems on A/B volumes, also through dm-verity.
fn mount_points(config: &Value) -> BTreeSet<String> {
    let text = |value: &Value, field: &str| {
        value.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let pairs = list(config, &["storage", "abUpdate", "volumePairs"]);
    let mut volumes: BTreeSet<String> = pairs.map(|pair| text(pair, "id")).collect();
    let verified = list(config, &["storage", "verity"]);
    let verified: Vec<String> = verified
        .filter(|device| volumes.contains(&text(device, "dataDeviceId")))
        .map(|device| text(device, "id"))
        .collect();
    volumes.extend(verified);
    list(config, &["storage", "filesystems"])
        .filter(|system| volumes.contains(&text(system, "deviceId")))
        .filter_map(|system| {
            let point = system.get("mountPoint")?;
            Some(point.as_str().map_or_else(|| text(point, "path"), str::to_owned))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const MOUNTS: &str = "\
22 1 8:3 / / rw,relatime shared:1 - ext4 /dev/sda3 rw
23 22 0:21 / /proc rw,nosuid - proc proc rw
24 22 8:5 / /var/lib/node-state rw - ext4 /dev/sda5 rw
25 22 8:5 /kubelet /var/lib/kubelet rw - ext4 /dev/sda5 rw
26 24 8:3 /srv/bound /var/lib/node-state/bound rw - ext4 /dev/sda3 rw
27 22 8:7 / /var/data rw - ext4 /dev/sda7 rw
28 22 8:7 / /var/over rw - ext4 /dev/sda7 rw
29 22 8:5 / /var/over rw - ext4 /dev/sda5 rw
";

    fn config(root: &str) -> Value {
        json!({"storage": {
            "abUpdate": {"volumePairs": [
                {"id": "root", "volumeAId": "root-a", "volumeBId": "root-b"},
                {"id": "hash", "volumeAId": "hash-a", "volumeBId": "hash-b"},
                {"id": "data", "volumeAId": "data-a", "volumeBId": "data-b"},
            ]},
            "verity": [{"id": "verified", "dataDeviceId": "root", "hashDeviceId": "hash"}],
            "filesystems": [
                {"deviceId": root, "mountPoint": "/"},
                {"deviceId": "data", "mountPoint": {"path": "/var/data", "options": "ro"}},
                {"deviceId": "state", "source": "new", "mountPoint": "/var/lib/node-state"},
                {"deviceId": "data", "source": "new"},
            ],
        }})
    }

    #[test]
    fn a_state_directory_on_an_ab_volume_is_found() {
        for (path, volume) in [
            ("/var/lib/refit-agent", Some("/")),
            ("/var/lib/node-state/refit-agent", None),
            ("/var/lib/node-statement", Some("/")),
            // A shared volume, mounted below the root, and the other way round.
            ("/var/lib/kubelet/refit-agent", None),
            ("/var/lib/node-state/bound/refit-agent", Some("/")),
            ("/var/data/refit-agent", Some("/var/data")),
            // The second mount hides the first one.
            ("/var/over/refit-agent", None),
        ] {
            for root in ["root", "verified"] {
                let found = exchanged_volume(&config(root), MOUNTS, Path::new(path));
                assert_eq!(found.as_deref(), volume, "{path} {root}");
            }
        }
        let shared = config("shared");
        assert_eq!(exchanged_volume(&shared, MOUNTS, Path::new("/var/lib/refit-agent")), None);
        assert_eq!(exchanged_volume(&config("root"), "", Path::new("/var/lib/refit-agent")), None);
        assert_eq!(exchanged_volume(&json!({}), MOUNTS, Path::new("/var/lib/refit-agent")), None);
    }
}
