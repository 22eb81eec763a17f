//! ValidatingAdmissionPolicies: the rules that a schema can't express, without a webhook and its
//! certificates.

use serde_json::{Value, json};

use crate::api::annotations::{self, DELETE_FOR_MOVE, RESERVED_ANNOTATIONS};
use crate::api::labels::CLUSTER_NAME;
use crate::api::{ADDRESS_CLAIM_FINALIZER, GROUP, MACHINE_FINALIZER, VERSION, ipam};

/// The annotation that Cluster API's topology controller puts on an object that it sends as a dry run to see
/// what would change.
const TOPOLOGY_DRY_RUN: &str = "topology.cluster.x-k8s.io/dry-run";

/// Prefix of the names of all objects that are installed.
pub const NAME_PREFIX: &str = "capcmi-";
/// Label of the objects of a provider, for clusterctl.
pub const PROVIDER_LABEL: &str = "cluster.x-k8s.io/provider";
/// Value of [`PROVIDER_LABEL`].
pub const PROVIDER: &str = "infrastructure-capcmi-cmi";
/// The virtual subresource of InfraMachines that stands for writing identities: the identity annotations and
/// the providerID. Only the admission policies check it.
pub const IDENTITY: &str = "identity";

/// Returns each policy with its binding, by name without the prefix.
pub fn by_name() -> Vec<(&'static str, [Value; 2])> {
    let machines = &["inframachines"];
    let templates = policy(
        "templates",
        &["inframachinetemplates", "infraclustertemplates"],
        &templates(),
    );
    let reserved_annotations = policy(
        "reserved-annotations",
        &["inframachines", "infraclusters"],
        &reserved_annotations(),
    );
    vec![
        ("templates", templates),
        ("reserved-annotations", reserved_annotations),
        ("provider-id", policy("provider-id", machines, &provider_id())),
        ("finalizer", policy("finalizer", machines, &finalizer())),
        ("secrets", secrets()),
        ("address-claims", address_claims()),
    ]
}

/// Returns every policy and binding, each as an object.
pub fn all() -> Vec<Value> {
    by_name().into_iter().flat_map(|(_, objects)| objects).collect()
}

/// Variables and validations of a policy.
struct PolicySpec {
    variables: Value,
    validations: Value,
}

/// A template's spec is immutable, and a template can't pass an identity on to its objects.
///
/// A template is compared only with its own previous version, so that an owner can still be set on a template
/// from before this policy.
fn templates() -> PolicySpec {
    let annotations = |object: &str| format!("{object}.?spec.?template.?metadata.?annotations.orValue({{}})");
    PolicySpec {
        variables: json!([
            {"name": "reserved", "expression": reserved()},
            {"name": "isTopologyDryRun", "expression": format!(
                "request.dryRun == true && '{TOPOLOGY_DRY_RUN}' in object.metadata.?annotations.orValue({{}})"
            )},
            {"name": "after", "expression": annotations("object")},
            {"name": "before", "expression": before(&annotations("oldObject"), "{}")},
            {"name": "added", "expression":
                "variables.reserved.filter(key, key in variables.after && variables.after[?key] != \
                    variables.before[?key])"
            },
        ]),
        validations: json!([
            {
                "expression":
                    "oldObject == null || object.spec.template.spec == oldObject.spec.template.spec || \
                        variables.isTopologyDryRun",
                "message":
                    "spec.template.spec is immutable, because existing machines would not follow: create a \
                        new template and refer to it",
                "reason": "Invalid",
            },
            {
                "expression": "variables.added.size() == 0",
                "messageExpression": quoted_list(
                    "spec.template.metadata.annotations must not have ",
                    "variables.added",
                    ": an identity belongs to one object",
                ),
                "reason": "Invalid",
            },
        ]),
    }
}

/// Only users with the permission of [`may_identify`] may write the annotations that bind VMs to objects.
///
/// A machine that is up adopts no VM. The annotation would have no effect until a move or a restore removes
/// the status. Then it would request a VM that is already the machine's own.
fn reserved_annotations() -> PolicySpec {
    let adopt = annotations::ADOPT;
    let is_up = "oldObject.?status.?initialization.?provisioned.orValue(false)";
    PolicySpec {
        variables: json!([
            {"name": "reserved", "expression": reserved()},
            {"name": "after", "expression": "object.metadata.?annotations.orValue({})"},
            {"name": "before", "expression": before("oldObject.metadata.?annotations.orValue({})", "{}")},
            {"name": "changed", "expression":
                "variables.reserved.filter(key, variables.after[?key] != variables.before[?key])"
            },
            {"name": "isUp", "expression": before(is_up, "false")},
        ]),
        validations: json!([
            {
                "expression": format!("variables.changed.size() == 0 || {}", may_identify()),
                "messageExpression": quoted_list(
                    "metadata.annotations must not be set, changed or removed: ",
                    "variables.changed",
                    &format!("; they identify the VM, and {}", who_may_identify("write them")),
                ),
                "reason": "Forbidden",
            },
            {
                "expression": format!(
                    "!variables.isUp || !('{adopt}' in variables.after) || '{adopt}' in variables.before"
                ),
                "message": format!(
                    "{adopt} must not be set on a machine that is up, because it has its VM: set it when \
                        the InfraMachine is created"
                ),
                "reason": "Invalid",
            },
        ]),
    }
}

/// The providerID identifies a VM as well, and the driver is asked for that VM. It comes from the driver or,
/// for a moved object, from the administrator. Cluster API reads it and never writes it. The schema keeps it
/// from changing.
fn provider_id() -> PolicySpec {
    let value = |object: &str| format!("{object}.?spec.?providerID.orValue('')");
    PolicySpec {
        variables: json!([
            {"name": "after", "expression": value("object")},
            {"name": "before", "expression": before(&value("oldObject"), "''")},
        ]),
        validations: json!([{
            "expression": format!("variables.after == variables.before || {}", may_identify()),
            "message": format!(
                "spec.providerID must not be set, changed or removed: it identifies the VM, and {}",
                who_may_identify("write it")
            ),
            "reason": "Forbidden",
        }]),
    }
}

/// While a machine has a record or a providerID, only users with the permission of [`may_identify`] may
/// remove the finalizer. Otherwise the object would be deleted and its VM forgotten. A deletion leaves the
/// finalizers of others alone, so that there is no other way around it.
fn finalizer() -> PolicySpec {
    let has = |object: &str| format!("'{MACHINE_FINALIZER}' in {object}.metadata.?finalizers.orValue([])");
    let record = annotations::VM_RECORD;
    PolicySpec {
        variables: json!([
            {"name": "isTaken", "expression":
                before(&format!("{} && !({})", has("oldObject"), has("object")), "false")},
            {"name": "mayHaveVM", "expression": before(&format!(
                "oldObject.?spec.?providerID.orValue('') != '' || \
                 '{record}' in oldObject.metadata.?annotations.orValue({{}})"
            ), "false")},
        ]),
        validations: json!([{
            "expression": format!("!variables.isTaken || !variables.mayHaveVM || {}", may_identify()),
            "message": format!(
                "metadata.finalizers must keep {MACHINE_FINALIZER} while a VM may exist: the provider \
                    removes it when the driver confirms that the VM is deleted; if no driver can confirm \
                    that, an administrator sets annotation {}=true, which may leave the VM behind; {}",
                annotations::FORCE_DELETE,
                who_may_identify("do either"),
            ),
            "reason": "Forbidden",
        }]),
    }
}

/// A Secret with credentials stays while an InfraMachine names it: without it, no driver can delete the VM.
/// Every InfraMachine of the Secret's namespace is a parameter, and the policy is evaluated for each. A
/// deletion of the namespace or of an owner is repeated until the machines are gone.
///
/// `clusterctl move` may delete the Secret of the source before the machines, which keep their VMs.
///
/// CEL cannot parse the JSON of a record. The name of a Secret needs no escape in JSON, so a pattern finds
/// key and value, at any place in the record and with any white space. A provider spec with the same key and
/// value holds a Secret as well.
///
/// It is evaluated once for each InfraMachine of the namespace. A fleet deletes bootstrap data for each
/// machine, so the policy leaves out the Secrets of Cluster API, by their label.
///
/// It guards no identity and fails open. If it failed closed, no Secret of the management cluster could be
/// deleted while the definition of InfraMachines is missing.
fn secrets() -> [Value; 2] {
    let record = annotations::VM_RECORD;
    let spec = json!({
        "failurePolicy": "Ignore",
        "paramKind": {"apiVersion": format!("{GROUP}/{VERSION}"), "kind": "InfraMachine"},
        "matchConstraints": {
            "matchPolicy": "Equivalent",
            "objectSelector": {"matchExpressions": [{"key": CLUSTER_NAME, "operator": "DoesNotExist"}]},
            "resourceRules": [{
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "operations": ["DELETE"],
                "resources": ["secrets"],
                "scope": "Namespaced",
            }],
        },
        "variables": [
            {"name": "named", "expression": "params.?spec.?secretRef.?name.orValue('')"},
            {"name": "record", "expression":
                format!("params.metadata.?annotations.orValue({{}})[?'{record}'].orValue('')")
            },
        ],
        "validations": [{
            "expression": format!("'{DELETE_FOR_MOVE}' in oldObject.metadata.?annotations.orValue({{}}) || \
                (variables.named != oldObject.metadata.name && \
                !variables.record.matches(r'\"secret\"\\s*:\\s*\"' + \
                oldObject.metadata.name.replace('.', '[.]') + '\"'))"),
            "messageExpression": "'InfraMachine ' + params.metadata.name + ' needs this Secret to delete \
                its VM: delete the Machine first, then the Secret'",
            "reason": "Forbidden",
        }],
    });
    let params = json!({"selector": {}, "parameterNotFoundAction": "Allow"});
    documents("secrets", &spec, Some(params))
}

/// An IPAddressClaim stays while a VM may have its address: an IPAM provider releases the address when the
/// deletion of the claim begins, whatever other finalizers it has. This provider removes its finalizer when
/// the VM is gone. A deletion of the namespace or, in the foreground, of an owner is repeated until then.
///
/// It guards no identity and fails open, as does [`secrets`].
fn address_claims() -> [Value; 2] {
    let spec = json!({
        "failurePolicy": "Ignore",
        "matchConstraints": {
            "matchPolicy": "Equivalent",
            "resourceRules": [{
                "apiGroups": [ipam::GROUP],
                "apiVersions": ["v1beta2"],
                "operations": ["DELETE"],
                "resources": ["ipaddressclaims"],
                "scope": "Namespaced",
            }],
        },
        "validations": [{
            "expression": format!(
                "!('{ADDRESS_CLAIM_FINALIZER}' in oldObject.metadata.?finalizers.orValue([])) || \
                 '{DELETE_FOR_MOVE}' in oldObject.metadata.?annotations.orValue({{}})"
            ),
            "message": "the VM of an InfraMachine may have the address of this claim: delete the Machine, \
                and the provider releases the claim when the VM is gone",
            "reason": "Forbidden",
        }],
    });
    documents("address-claims", &spec, None)
}

/// Whether the caller may `update` the virtual subresource, in the whole cluster. A VM has no namespace: a
/// user who may write identities in one namespace could name the VM of any other namespace there. So the
/// check has no namespace, and grants of a RoleBinding do not count, not even with a wildcard.
fn may_identify() -> String {
    format!(
        "authorizer.group('{GROUP}').resource('inframachines').subresource('{IDENTITY}').check('update').\
         allowed()"
    )
}

fn who_may_identify(what: &str) -> String {
    format!(
        "only the provider and users that may update inframachines/{IDENTITY} of {GROUP} in the whole \
         cluster may {what}"
    )
}

fn reserved() -> String {
    let quoted = RESERVED_ANNOTATIONS.map(|key| format!("'{key}'"));
    format!("[{}]", quoted.join(", "))
}

/// The object before the write; a CREATE has none.
fn before(expression: &str, nothing: &str) -> String {
    format!("oldObject == null ? {nothing} : {expression}")
}

fn quoted_list(start: &str, list: &str, end: &str) -> String {
    format!("'{start}' + {list}.join(', ') + '{end}'")
}

/// A policy for objects of this provider, and its binding. Both fail closed.
fn policy(name: &str, resources: &[&str], rules: &PolicySpec) -> [Value; 2] {
    let spec = json!({
        "failurePolicy": "Fail",
        "matchConstraints": {
            "matchPolicy": "Equivalent",
            "resourceRules": [{
                "apiGroups": [GROUP],
                "apiVersions": [VERSION],
                "operations": ["CREATE", "UPDATE"],
                "resources": resources,
                "scope": "Namespaced",
            }],
        },
        "variables": rules.variables,
        "validations": rules.validations,
    });
    documents(name, &spec, None)
}

/// A policy and its binding, with the parameters if it has any.
fn documents(name: &str, spec: &Value, params: Option<Value>) -> [Value; 2] {
    let name = format!("{NAME_PREFIX}{name}");
    let metadata = json!({"name": name, "labels": {PROVIDER_LABEL: PROVIDER}});
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": metadata,
        "spec": spec,
    });
    let mut binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": metadata,
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    });
    if let Some(params) = params {
        binding["spec"]["paramRef"] = params;
    }
    [policy, binding]
}
