//! The names of a PersistentVolume in `node.status.volumesAttached`. Pure.

use serde_json::Value;

/// The longest compared name or id. A workload cluster may send any length, and each name is compared with
/// each id.
const MAX_NAME_BYTES: usize = 1024;
/// The shortest id that is compared: a shorter id would match names of other volumes.
const MIN_ID: usize = 3;
/// Volume sources older than CSI, each with the field for the volume's id.
const IN_TREE: [(&str, &str); 6] = [
    ("awsElasticBlockStore", "volumeID"),
    ("azureDisk", "diskURI"),
    ("cinder", "volumeID"),
    ("gcePersistentDisk", "pdName"),
    ("portworxVolume", "volumeID"),
    ("vsphereVolume", "volumePath"),
];

/// The attached volumes that belong to PersistentVolumes with these specs. They match by the ids that the
/// driver found in the specs, or by Kubernetes' own names for them.
pub fn attached<'a>(attached: &'a [String], specs: &[Value], ids: &[String]) -> Vec<&'a str> {
    let of_specs = specs.iter().flat_map(ids_of);
    let of_driver = ids.iter().map(String::as_str);
    let ids: Vec<_> = of_specs.chain(of_driver).filter_map(comparable).collect();
    let is_ours = |name: &&String| {
        comparable(name).is_some_and(|lower| {
            specs.iter().any(|spec| is_csi_volume(name, spec)) || ids.iter().any(|id| is_named_by(&lower, id))
        })
    };
    attached.iter().filter(is_ours).map(String::as_str).collect()
}

/// A name or id in the compared form: back ends treat upper and lower case as equal.
fn comparable(name: impl AsRef<str>) -> Option<String> {
    let name = name.as_ref();
    (name.len() <= MAX_NAME_BYTES).then(|| name.to_lowercase())
}

fn is_csi_volume(name: &str, spec: &Value) -> bool {
    let rest = name.strip_prefix("kubernetes.io/csi/");
    let named = rest.and_then(|rest| rest.split_once('^'));
    csi_volume(spec).is_some_and(|volume| named == Some(volume))
}

/// Driver and handle of a CSI volume.
fn csi_volume(spec: &Value) -> Option<(&str, &str)> {
    let csi = &spec["csi"];
    Some((csi["driver"].as_str()?, csi["volumeHandle"].as_str()?))
}

/// The ids of a volume of a source older than CSI.
fn ids_of(spec: &Value) -> impl Iterator<Item = &str> {
    let in_tree = IN_TREE.iter().filter(|_| csi_volume(spec).is_none());
    in_tree
        .filter_map(|(source, field)| spec[*source][*field].as_str())
        // For example aws://eu-west-1a/vol-1.
        .map(|id| id.rsplit('/').next().unwrap_or(id))
}

/// Whether a name contains an id as a whole word, both [`comparable`]: `vol-1` is neither in `vol-12` nor in
/// `my-vol-1`.
fn is_named_by(name: &str, id: &str) -> bool {
    if id.len() < MIN_ID {
        return false;
    }
    let ends = |letter: Option<char>| {
        letter.is_none_or(|letter| !letter.is_alphanumeric() && !"-_.".contains(letter))
    };
    name.match_indices(id).any(|(at, found)| {
        let (before, after) = (&name[..at], &name[at + found.len()..]);
        ends(before.chars().next_back()) && ends(after.chars().next())
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn names(all: &[&str]) -> Vec<String> {
        all.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn a_csi_volume_has_the_name_that_kubernetes_makes_of_driver_and_handle() {
        let spec = json!({"csi": {"driver": "d.example.com", "volumeHandle": "vol-1"}});
        let on_node = names(&[
            "kubernetes.io/csi/d.example.com^vol-1",
            "kubernetes.io/csi/d.example.com^vol-12",
            "kubernetes.io/csi/other.example.com^vol-1",
        ]);
        assert_eq!(attached(&on_node, &[spec], &[]), [&on_node[0]]);
    }

    #[test]
    fn an_in_tree_volume_is_found_by_its_id_also_after_csi_migration() {
        let on_node = names(&[
            "kubernetes.io/aws-ebs/aws://eu-west-1a/vol-1",
            "kubernetes.io/csi/ebs.csi.aws.com^vol-1",
            "kubernetes.io/aws-ebs/aws://eu-west-1a/vol-11",
        ]);
        let spec = json!({"awsElasticBlockStore": {"volumeID": "aws://eu-west-1a/vol-1"}});
        assert_eq!(attached(&on_node, &[spec], &[]), [&on_node[0], &on_node[1]]);
    }

    /// The names from Kubernetes' old plugins, and the names of the same volumes with CSI drivers
    /// (k8s.io/csi-translation-lib). Each is next to a name of another volume.
    #[test]
    fn each_kind_of_in_tree_volume_has_the_names_that_kubernetes_uses() {
        const DISK: &str = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/disks/pvc-1";
        const CINDER: &str = "0b1c2d3e-4f50-4a6b-8c7d-9e0f1a2b3c4d";
        const VMDK: &str = "[datastore1] kubevols/pvc-1.vmdk";
        let azure = [
            format!("kubernetes.io/azure-disk/{DISK}"),
            format!("kubernetes.io/csi/disk.csi.azure.com^{DISK}"),
        ];
        let cinder = [
            format!("kubernetes.io/cinder/{CINDER}"),
            format!("kubernetes.io/csi/cinder.csi.openstack.org^{CINDER}"),
        ];
        let vsphere = [
            format!("kubernetes.io/vsphere-volume/{VMDK}"),
            format!("kubernetes.io/csi/csi.vsphere.vmware.com^{VMDK}"),
        ];
        for (spec, own, other) in [
            (
                json!({"awsElasticBlockStore": {"volumeID": "aws://eu-west-1a/vol-0a1b", "fsType": "ext4"}}),
                names(&[
                    "kubernetes.io/aws-ebs/aws://eu-west-1a/vol-0a1b",
                    "kubernetes.io/csi/ebs.csi.aws.com^vol-0a1b",
                ]),
                "kubernetes.io/csi/ebs.csi.aws.com^vol-0a1b2",
            ),
            (
                json!({"awsElasticBlockStore": {"volumeID": "vol-0a1b"}}),
                names(&["kubernetes.io/csi/ebs.csi.aws.com^vol-0a1b"]),
                "kubernetes.io/csi/ebs.csi.aws.com^vol-00a1b",
            ),
            (
                json!({"azureDisk": {"diskName": "pvc-1", "diskURI": DISK, "kind": "Managed"}}),
                azure.to_vec(),
                "kubernetes.io/csi/disk.csi.azure.com^/subscriptions/s/resourceGroups/g/disks/pvc-10",
            ),
            (
                json!({"cinder": {"volumeID": CINDER}}),
                cinder.to_vec(),
                "kubernetes.io/csi/cinder.csi.openstack.org^1b1c2d3e-4f50-4a6b-8c7d-9e0f1a2b3c4d",
            ),
            (
                json!({"gcePersistentDisk": {"pdName": "gke-pvc-1"}}),
                names(&[
                    "kubernetes.io/gce-pd/gke-pvc-1",
                    concat!(
                        "kubernetes.io/csi/pd.csi.storage.gke.io^",
                        "projects/UNSPECIFIED/zones/us-central1-a/disks/gke-pvc-1"
                    ),
                    "kubernetes.io/csi/pd.csi.storage.gke.io^projects/p/regions/us-central1/disks/gke-pvc-1",
                ]),
                "kubernetes.io/csi/pd.csi.storage.gke.io^projects/p/zones/us-central1-a/disks/old-gke-pvc-1",
            ),
            (
                json!({"portworxVolume": {"volumeID": "1017472935843321932"}}),
                names(&[
                    "kubernetes.io/portworx-volume/1017472935843321932",
                    "kubernetes.io/csi/pxd.portworx.com^1017472935843321932",
                ]),
                "kubernetes.io/csi/pxd.portworx.com^101747293584332193",
            ),
            (
                json!({"vsphereVolume": {"volumePath": VMDK}}),
                vsphere.to_vec(),
                "kubernetes.io/vsphere-volume/[datastore1] kubevols/my-pvc-1.vmdk",
            ),
        ] {
            let on_node: Vec<_> = own.iter().cloned().chain([other.to_owned()]).collect();
            assert_eq!(
                attached(&on_node, std::slice::from_ref(&spec), &[]),
                own,
                "{spec}"
            );
        }
    }

    /// CTL-05: ids that only the driver can find.
    #[test]
    fn the_ids_of_the_driver_count_as_whole_words_whatever_their_case() {
        let on_node = names(&[
            "flexvolume-x/disk/VOL-2",
            "flexvolume-x/disk/my-vol-2",
            "flexvolume-x/disk/vol-2_a",
            "kubernetes.io/csi/x^projects/p/disks/vol-2/part",
        ]);
        let spec = json!({"flexVolume": {"driver": "x/disk", "options": {"id": "vol-2"}}});
        let found = attached(&on_node, std::slice::from_ref(&spec), &names(&["vol-2"]));
        assert_eq!(found, [&on_node[0], &on_node[3]]);
        assert!(attached(&on_node, &[spec], &names(&["", "2"])).is_empty());
    }

    #[test]
    fn a_name_that_is_longer_than_any_volume_s_is_not_looked_at() {
        let long = format!("{}/vol-2", "x".repeat(MAX_NAME_BYTES));
        let on_node = names(&[&long, "x/vol-2"]);
        assert_eq!(attached(&on_node, &[], &names(&["vol-2"])), ["x/vol-2"]);
    }
}
