//! The only place that defines the permissions of each role, with their reasons.
//!
//! The provider's rules are the verbs that it uses and nothing else: a test can compare the verbs in an audit
//! log with [`PROVIDER`], [`SECRETS`] and [`LEADER_ELECTION`].

pub use capcmi::admission::policies::IDENTITY;
use capcmi::api::{GROUP, cluster_api, ipam};

/// A group of verbs that is granted for a group of resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// API group.
    pub group: &'static str,
    /// Resources in plural, with their subresource.
    pub resources: &'static [&'static str],
    /// Verbs.
    pub verbs: &'static [&'static str],
    /// What breaks without it.
    pub why: &'static str,
}

const READ: &[&str] = &["get", "list", "watch"];
/// The verbs that a cache needs.
const WATCH: &[&str] = &["list", "watch"];
const KINDS: &[&str] = &[
    "inframachines",
    "inframachinetemplates",
    "infraclusters",
    "infraclustertemplates",
];

/// The provider, in all namespaces that it serves.
pub const PROVIDER: &[Rule] = &[
    Rule {
        group: GROUP,
        resources: &["inframachines"],
        verbs: &["get", "list", "watch", "patch"],
        why: "Finalizer, identity and providerID are merge patches, repeated after a fresh read on \
            conflict. The provider neither creates nor deletes InfraMachines.",
    },
    Rule {
        group: GROUP,
        resources: &["infraclusters"],
        verbs: &["list", "watch", "patch"],
        why: "The cluster id of drivers is a merge patch. The provider neither creates nor deletes \
            InfraClusters.",
    },
    Rule {
        group: GROUP,
        resources: &["inframachines/identity"],
        verbs: &["update"],
        why: "The admission policies that reserve identity annotations and providerID check this \
            permission; no such path is served.",
    },
    Rule {
        group: GROUP,
        resources: &["inframachinetemplates"],
        verbs: WATCH,
        why: "The capacity of one machine is computed from the template.",
    },
    Rule {
        group: GROUP,
        resources: &[
            "inframachines/status",
            "infraclusters/status",
            "inframachinetemplates/status",
        ],
        verbs: &["patch"],
        why: "One status write ends a reconcile.",
    },
    Rule {
        group: cluster_api::GROUP,
        resources: &["clusters", "machines"],
        verbs: WATCH,
        why: "Owners: bootstrap data, failure domain, pause. They are never written.",
    },
    Rule {
        group: ipam::GROUP,
        resources: &["ipaddressclaims"],
        verbs: &["get", "list", "watch", "create", "patch", "delete"],
        why: "Static addresses are claimed before a VM is created. When it is gone, a patch removes the \
            finalizer, and the claims are deleted.",
    },
    Rule {
        group: ipam::GROUP,
        resources: &["ipaddresses"],
        verbs: &["get"],
        why: "The address that was allocated for a claim.",
    },
    Rule {
        group: GROUP,
        resources: &["inframachines/finalizers"],
        verbs: &["update"],
        why: "Required where OwnerReferencesPermissionEnforcement is on: the deletion of an InfraMachine \
            waits for its claims.",
    },
    Rule {
        group: "events.k8s.io",
        resources: &["events"],
        verbs: &["create"],
        why: "Events about machines.",
    },
    Rule {
        group: "authentication.k8s.io",
        resources: &["tokenreviews"],
        verbs: &["create"],
        why: "The identity of callers of /metrics.",
    },
    Rule {
        group: "authorization.k8s.io",
        resources: &["subjectaccessreviews"],
        verbs: &["create"],
        why: "The permissions of callers of /metrics.",
    },
];

/// The provider, in all namespaces or, if the administrator binds the role that way, only in some.
pub const SECRETS: &[Rule] = &[Rule {
    group: "",
    resources: &["secrets"],
    verbs: &["get"],
    why: "Bootstrap data, the driver's credentials and, for the not-ready taint and the volume drain, the \
        kubeconfig of the workload cluster are read by name, on demand, in the machine's namespace. Nothing \
        is listed, watched or written.",
}];

/// The provider, in its own namespace.
pub const LEADER_ELECTION: &[Rule] = &[Rule {
    group: "coordination.k8s.io",
    resources: &["leases"],
    verbs: &["get", "create", "update", "patch"],
    why: "Leader election.",
}];

/// The provider, only for the admission policies of this installation: see
/// [`mod@capcmi::admission::policies`].
pub const ADMISSION: &[Rule] = &[Rule {
    group: "admissionregistration.k8s.io",
    resources: &["validatingadmissionpolicies", "validatingadmissionpolicybindings"],
    verbs: &["get", "create", "patch"],
    why: "The provider installs the policies that guard identities, and trusts no identity without them. It \
        applies them by name, so the names restrict create as well.",
}];

/// Cluster API's core controllers, by aggregation.
pub const CLUSTER_API: &[Rule] = &[
    Rule {
        group: GROUP,
        resources: KINDS,
        verbs: &["create", "delete", "get", "list", "patch", "update", "watch"],
        why: "Core creates machines and, with ClusterClass, clusters and templates, and sets their owners \
            and labels.",
    },
    Rule {
        group: GROUP,
        resources: &[
            "inframachines/finalizers",
            "inframachinetemplates/finalizers",
            "infraclusters/finalizers",
            "infraclustertemplates/finalizers",
        ],
        verbs: &["update"],
        why: "Required where OwnerReferencesPermissionEnforcement is on and one of these kinds owns another \
            object with blockOwnerDeletion.",
    },
];

/// Cluster API's kubeadm control plane provider, by a separate aggregation. It does not have core's
/// permissions, and its own end at the group `infrastructure.cluster.x-k8s.io`.
pub const KUBEADM_CONTROL_PLANE: &[Rule] = &[
    Rule {
        group: GROUP,
        resources: &["inframachines"],
        verbs: &["create", "delete", "get", "list", "patch", "update", "watch"],
        why: "A KubeadmControlPlane creates machines from a template, and updates them in place.",
    },
    Rule {
        group: GROUP,
        resources: &["inframachinetemplates"],
        verbs: &["get", "list", "patch", "update", "watch"],
        why: "A KubeadmControlPlane reads its template, and becomes its owner.",
    },
];

/// Providers of hosted control planes, by a separate aggregation or a binding. Their API server has its
/// address before any machine exists.
///
/// Kamaji and k0smotron read InfraClusters from a cache, which lists and watches. Kamaji patches the
/// endpoint, and k0smotron replaces the whole object.
pub const HOSTED_CONTROL_PLANE: &[Rule] = &[Rule {
    group: GROUP,
    resources: &["infraclusters"],
    verbs: &["get", "list", "patch", "update", "watch"],
    why: "A hosted control plane sets spec.controlPlaneEndpoint of the InfraCluster. It makes no machines.",
}];

/// The right to look (aggregated to `view`, and by it to `edit` and `admin`).
pub const VIEW: &[Rule] = &[Rule {
    group: GROUP,
    resources: KINDS,
    verbs: READ,
    why: "These objects hold no secrets: credentials are in Secrets.",
}];

/// The right to change (aggregated to `edit`, and by it to `admin`).
pub const EDIT: &[Rule] = &[Rule {
    group: GROUP,
    resources: KINDS,
    verbs: &["create", "delete", "deletecollection", "patch", "update"],
    why: "Machines and templates of the user's clusters. Not inframachines/identity: a forged identity \
        could claim the VM of another cluster.",
}];

const REMEDIATION_KINDS: &[&str] = &["inframachineremediations", "inframachineremediationtemplates"];

/// The provider where it runs with `--enable-remediation`, in all namespaces that it serves.
pub const REMEDIATION: &[Rule] = &[
    Rule {
        group: GROUP,
        resources: &["inframachineremediations"],
        verbs: &["list", "watch", "patch"],
        why: "A restart is recorded by a merge patch before the driver is called. The provider neither \
            creates nor deletes remediations.",
    },
    Rule {
        group: GROUP,
        resources: &["inframachineremediations/status"],
        verbs: &["patch"],
        why: "One status write ends a reconcile.",
    },
    Rule {
        group: cluster_api::GROUP,
        resources: &["machines"],
        verbs: &["get"],
        why: "The remediation depends on conditions that core's controllers set on the Machine, which is \
            not cached.",
    },
    Rule {
        group: cluster_api::GROUP,
        resources: &["machines/status"],
        verbs: &["patch"],
        why: "The conditions ExternallyRemediated and OwnerRemediated tell the Machine's owner when to \
            replace it.",
    },
];

/// Cluster API's core controllers there, by aggregation.
pub const REMEDIATION_CLUSTER_API: &[Rule] = &[Rule {
    group: GROUP,
    resources: REMEDIATION_KINDS,
    verbs: &["create", "delete", "get", "list", "patch", "update", "watch"],
    why: "MachineHealthChecks read templates, and create and delete remediations.",
}];

/// The right to look there (aggregated to `view`, and by it to `edit` and `admin`).
pub const REMEDIATION_VIEW: &[Rule] = &[Rule {
    group: GROUP,
    resources: REMEDIATION_KINDS,
    verbs: READ,
    why: "These objects hold no secrets.",
}];

/// The right to change there (aggregated to `edit`, and by it to `admin`).
pub const REMEDIATION_EDIT: &[Rule] = &[Rule {
    group: GROUP,
    resources: REMEDIATION_KINDS,
    verbs: &["create", "delete", "deletecollection", "patch", "update"],
    why: "Templates for the MachineHealthChecks of the user's clusters. A remediation only restarts the VM \
        of a Machine in its own namespace.",
}];

/// The provider where it runs with `--enable-volume-drain`, in all namespaces that it serves.
pub const VOLUME_DRAIN: &[Rule] = &[
    Rule {
        group: cluster_api::GROUP,
        resources: &["machines"],
        verbs: &["get", "patch"],
        why: "A hook on a Machine makes Cluster API wait before it drains the Node. It is one annotation, \
            set and removed by a merge patch; a deleted Machine is read by name.",
    },
    Rule {
        group: cluster_api::GROUP,
        resources: &["machinedrainrules"],
        verbs: &["list"],
        why: "Pods that match a MachineDrainRule of the Machine's namespace are left to Cluster API.",
    },
];

/// The right to read metrics; bind it to the monitoring's ServiceAccount.
pub const METRICS_PATHS: &[&str] = &["/metrics"];
