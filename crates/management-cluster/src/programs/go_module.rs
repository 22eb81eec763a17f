//! The Go modules that the programs are built from.

use sha2::{Digest, Sha256};

/// The release of Kubernetes that `programs/kubernetes/go.mod` names.
pub const KUBERNETES_VERSION: &str = "v1.36.3";
/// The release of Cluster API that `programs/cluster-api/go.mod` names.
pub const CLUSTER_API_VERSION: &str = "v1.14.2";
/// The release of machine-controller-manager that `programs/machine-controller-manager/go.mod` names.
pub const MACHINE_CONTROLLER_MANAGER_VERSION: &str = "v0.62.1";
/// The release of Helm that `programs/helm/go.mod` names.
pub const HELM_VERSION: &str = "v3.21.4";
/// The release of the Cluster API operator that `programs/cluster-api-operator/go.mod` names.
pub const CLUSTER_API_OPERATOR_VERSION: &str = "v0.29.0";

/// The release of the in-cluster IPAM provider that `programs/ipam-in-cluster/go.mod` names.
pub const IPAM_IN_CLUSTER_VERSION: &str = "v1.1.0";

/// The release of Flux's kustomize-controller that `programs/flux/go.mod` names.
pub const FLUX_VERSION: &str = "v1.9.6";

/// The release of cert-manager that `programs/cert-manager/go.mod` names.
pub const CERT_MANAGER_VERSION: &str = "v1.11.5";

/// A program and the Go package that it is built from.
pub(super) struct Package {
    /// The name of the program for `go build`, and in the cache.
    pub program: &'static str,
    /// Import path of its `main` package.
    pub path: &'static str,
}

/// A small Go module which pins the versions of some programs.
pub(super) struct GoModule {
    pub name: &'static str,
    pub go_mod: &'static str,
    pub go_sum: &'static str,
    /// The module's own packages: paths and texts of their files.
    pub sources: &'static [(&'static str, &'static str)],
    pub packages: &'static [Package],
    pub build_flags: &'static [&'static str],
}

const fn package(program: &'static str, path: &'static str) -> Package {
    Package { program, path }
}

/// etcd and Kubernetes. They name their release only when it is linked in.
pub(super) const KUBERNETES: GoModule = GoModule {
    name: "kubernetes",
    go_mod: include_str!("../../programs/kubernetes/go.mod"),
    go_sum: include_str!("../../programs/kubernetes/go.sum"),
    sources: &[],
    packages: &[
        package("etcd", "go.etcd.io/etcd/server/v3"),
        package("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
        package(
            "kube-controller-manager",
            "k8s.io/kubernetes/cmd/kube-controller-manager",
        ),
        package("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
    ],
    build_flags: &[
        "-ldflags=-s -w -X k8s.io/component-base/version.gitVersion=v1.36.3 \
         -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=36",
    ],
};

/// Cluster API, with the build tag of its release images.
pub(super) const CLUSTER_API: GoModule = GoModule {
    name: "cluster-api",
    go_mod: include_str!("../../programs/cluster-api/go.mod"),
    go_sum: include_str!("../../programs/cluster-api/go.sum"),
    sources: &[],
    packages: &[
        package("core", "sigs.k8s.io/cluster-api/core"),
        package("clusterctl", "sigs.k8s.io/cluster-api/cmd/clusterctl"),
    ],
    build_flags: &[
        "-tags=fieldsv1string",
        "-ldflags=-s -w -X sigs.k8s.io/cluster-api/version.gitVersion=v1.14.2",
    ],
};

/// Cluster API's kubeadm providers, from the module of [`CLUSTER_API`]. `go build` names both `kubeadm`, so
/// each is built separately.
pub(super) const KUBEADM_BOOTSTRAP: Package =
    package("kubeadm-bootstrap", "sigs.k8s.io/cluster-api/bootstrap/kubeadm");
/// See [`KUBEADM_BOOTSTRAP`].
pub(super) const KUBEADM_CONTROL_PLANE: Package = package(
    "kubeadm-control-plane",
    "sigs.k8s.io/cluster-api/controlplane/kubeadm",
);

/// machine-controller-manager, and its machine controller, which it leaves to providers to build.
pub(super) const MACHINE_CONTROLLER_MANAGER: GoModule = GoModule {
    name: "machine-controller-manager",
    go_mod: include_str!("../../programs/machine-controller-manager/go.mod"),
    go_sum: include_str!("../../programs/machine-controller-manager/go.sum"),
    sources: &[
        (
            "machine-controller/main.go",
            include_str!("../../programs/machine-controller-manager/machine-controller/main.go"),
        ),
        (
            "machine-controller/driver.go",
            include_str!("../../programs/machine-controller-manager/machine-controller/driver.go"),
        ),
        (
            "machine-controller/message.go",
            include_str!("../../programs/machine-controller-manager/machine-controller/message.go"),
        ),
    ],
    packages: &[
        package(
            "machine-controller-manager",
            "github.com/gardener/machine-controller-manager/cmd/machine-controller-manager",
        ),
        package("machine-controller", "./machine-controller"),
    ],
    build_flags: &[
        "-ldflags=-s -w -X github.com/gardener/machine-controller-manager/pkg/version.Version=v0.62.1",
    ],
};

/// Helm.
pub(super) const HELM: GoModule = GoModule {
    name: "helm",
    go_mod: include_str!("../../programs/helm/go.mod"),
    go_sum: include_str!("../../programs/helm/go.sum"),
    sources: &[],
    packages: &[package("helm", "helm.sh/helm/v3/cmd/helm")],
    build_flags: &["-ldflags=-s -w -X helm.sh/helm/v3/internal/version.version=v3.21.4"],
};

/// The Cluster API operator. `go build` calls it `cmd`.
pub(super) const CLUSTER_API_OPERATOR: GoModule = GoModule {
    name: "cluster-api-operator",
    go_mod: include_str!("../../programs/cluster-api-operator/go.mod"),
    go_sum: include_str!("../../programs/cluster-api-operator/go.sum"),
    sources: &[],
    packages: &[package(
        "cluster-api-operator",
        "sigs.k8s.io/cluster-api-operator/cmd",
    )],
    build_flags: &["-ldflags=-s -w -X sigs.k8s.io/cluster-api-operator/version.gitVersion=v0.29.0"],
};

/// Cluster API's in-cluster IPAM provider. It reports the version of client-go as its own.
pub(super) const IPAM_IN_CLUSTER: GoModule = GoModule {
    name: "ipam-in-cluster",
    go_mod: include_str!("../../programs/ipam-in-cluster/go.mod"),
    go_sum: include_str!("../../programs/ipam-in-cluster/go.sum"),
    sources: &[],
    packages: &[package(
        "ipam-in-cluster",
        "sigs.k8s.io/cluster-api-ipam-provider-in-cluster",
    )],
    build_flags: &["-ldflags=-s -w -X k8s.io/client-go/pkg/version.gitVersion=v1.1.0"],
};

/// The module of Flux's Kustomizations. Only their definition is used here.
pub(super) const FLUX: GoModule = GoModule {
    name: "flux",
    go_mod: include_str!("../../programs/flux/go.mod"),
    go_sum: include_str!("../../programs/flux/go.sum"),
    sources: &[],
    packages: &[],
    build_flags: &[],
};

/// cert-manager, which Cluster API gets its certificates from when it runs as Pods.
pub(super) const CERT_MANAGER: GoModule = GoModule {
    name: "cert-manager",
    go_mod: include_str!("../../programs/cert-manager/go.mod"),
    go_sum: include_str!("../../programs/cert-manager/go.sum"),
    sources: &[],
    packages: &[
        package(
            "controller",
            "github.com/cert-manager/cert-manager/cmd/controller",
        ),
        package("webhook", "github.com/cert-manager/cert-manager/cmd/webhook"),
        package(
            "cainjector",
            "github.com/cert-manager/cert-manager/cmd/cainjector",
        ),
    ],
    build_flags: &["-ldflags=-s -w -X github.com/cert-manager/cert-manager/pkg/util.AppVersion=v1.11.5"],
};

/// A program that computes the health of objects as GitOps tools do, by their libraries.
pub(super) const HEALTH: GoModule = GoModule {
    name: "health",
    go_mod: include_str!("../../programs/health/go.mod"),
    go_sum: include_str!("../../programs/health/go.sum"),
    sources: &[
        (
            "health/main.go",
            include_str!("../../programs/health/health/main.go"),
        ),
        (
            "health/flux.go",
            include_str!("../../programs/health/health/flux.go"),
        ),
        (
            "health/argocd.go",
            include_str!("../../programs/health/health/argocd.go"),
        ),
    ],
    packages: &[package("health", "./health")],
    build_flags: &["-ldflags=-s -w"],
};

impl GoModule {
    /// Names the folder of the cache. A change of any input of the programs changes the key, and so rebuilds
    /// them.
    pub(super) fn cache_key(&self) -> String {
        let mut hash = Sha256::new();
        let sources = self.sources.iter().flat_map(|(path, text)| [path, text]);
        let parts = [&self.go_mod, &self.go_sum].into_iter().chain(sources);
        for part in parts.chain(self.build_flags) {
            hash.update(part.as_bytes());
            hash.update([0]);
        }
        let digest = format!("{:x}", hash.finalize());
        format!("{}-{}", self.name, &digest[..12])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The required versions of a go.mod file.
    fn versions(go_mod: &str) -> Vec<(&str, &str)> {
        let lines = go_mod.lines().filter_map(|line| line.strip_prefix('\t'));
        let mut words = lines.map(|line| line.split(' '));
        let pairs = words
            .by_ref()
            .filter_map(|mut words| Some((words.next()?, words.next()?)));
        pairs.collect()
    }

    /// Otherwise both are compiled from the start, which takes minutes.
    fn assert_libraries_of_kubernetes(go_mod: &str) {
        let of_kubernetes = versions(KUBERNETES.go_mod);
        let mut shared = 0;
        for (library, version) in versions(go_mod) {
            if let Some((_, other)) = of_kubernetes.iter().find(|(known, _)| *known == library) {
                assert_eq!(version, *other, "{library}");
                shared += 1;
            }
        }
        assert!(shared > 20, "only {shared} libraries are shared");
    }

    #[test]
    fn machine_controller_manager_has_the_libraries_of_kubernetes() {
        assert_libraries_of_kubernetes(MACHINE_CONTROLLER_MANAGER.go_mod);
    }

    #[test]
    fn the_node_image_has_the_libraries_of_kubernetes() {
        let images = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../images/node/programs/kubernetes"
        );
        let go_mod = format!("{images}/{KUBERNETES_VERSION}/go.mod");
        let go_mod = std::fs::read_to_string(&go_mod).expect("run images/node/programs/update.sh");
        assert_libraries_of_kubernetes(&go_mod);
    }

    /// `programs/update.sh` writes the module files, and these constants are written by hand.
    #[test]
    fn the_versions_are_those_of_the_modules() {
        let flux = format!("github.com/fluxcd/kustomize-controller {FLUX_VERSION}");
        assert!(FLUX.go_mod.contains(&flux), "Flux is not at {FLUX_VERSION}");
        let pins = [
            (&KUBERNETES, "k8s.io/kubernetes", KUBERNETES_VERSION, "gitVersion"),
            (
                &CLUSTER_API,
                "sigs.k8s.io/cluster-api",
                CLUSTER_API_VERSION,
                "gitVersion",
            ),
            (
                &MACHINE_CONTROLLER_MANAGER,
                "github.com/gardener/machine-controller-manager",
                MACHINE_CONTROLLER_MANAGER_VERSION,
                "Version",
            ),
            (&HELM, "helm.sh/helm/v3", HELM_VERSION, "version"),
            (
                &CLUSTER_API_OPERATOR,
                "sigs.k8s.io/cluster-api-operator",
                CLUSTER_API_OPERATOR_VERSION,
                "gitVersion",
            ),
            (
                &IPAM_IN_CLUSTER,
                "sigs.k8s.io/cluster-api-ipam-provider-in-cluster",
                IPAM_IN_CLUSTER_VERSION,
                "gitVersion",
            ),
            (
                &CERT_MANAGER,
                "github.com/cert-manager/cert-manager",
                CERT_MANAGER_VERSION,
                "AppVersion",
            ),
        ];
        for (module, path, version, variable) in pins {
            assert!(
                module.go_mod.contains(&format!("\t{path} {version}")),
                "{path} is not at {version}"
            );
            let reported = format!(".{variable}={version}");
            assert!(
                module.build_flags.iter().any(|flag| flag.contains(&reported)),
                "{path} reports another version"
            );
        }
    }
}
