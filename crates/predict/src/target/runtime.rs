//! Container runtimes that are too old for the kubelet of the target version
//! (`docs/facts/kubeadm.md#container-runtime`).

/// What a kubelet does with a containerd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fit {
    /// It does not register its node.
    TooOld,
    /// It is announced to need a newer one.
    MayBeTooOld,
}

/// From this minor version on, a kubelet needs version 1 of the CRI, which containerd has since 1.6.
const CRI_V1: (u64, (u64, u64)) = (26, (1, 6));
/// From this one on, it is announced to need RuntimeConfig, which containerd has since 2.0.
const RUNTIME_CONFIG: (u64, (u64, u64)) = (37, (2, 0));

/// How a runtime fits a kubelet of a minor version; `None` if it does, or if the runtime is not containerd.
pub(super) fn fit(runtime: &str, minor: u64) -> Option<Fit> {
    let version = runtime.strip_prefix("containerd://")?.trim_start_matches('v');
    let mut numbers = version.split('.').map(str::parse::<u64>);
    let version = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    let is_below = |(since, needed): (u64, (u64, u64))| minor >= since && version < needed;
    if is_below(CRI_V1) {
        return Some(Fit::TooOld);
    }
    is_below(RUNTIME_CONFIG).then_some(Fit::MayBeTooOld)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_runtimes() {
        for (runtime, minor, wanted) in [
            ("containerd://1.5.18", 25, None),
            ("containerd://1.5.18", 26, Some(Fit::TooOld)),
            ("containerd://1.6.0", 35, None),
            ("containerd://1.7.28", 36, None),
            ("containerd://1.7.28", 37, Some(Fit::MayBeTooOld)),
            ("containerd://v2.0.0-rc.1", 37, None),
            ("containerd://1.10.0", 36, None),
            ("cri-o://1.19.0", 35, None),
            ("containerd://unknown", 35, None),
            ("", 35, None),
        ] {
            assert_eq!(fit(runtime, minor), wanted, "{runtime} {minor}");
        }
    }
}
