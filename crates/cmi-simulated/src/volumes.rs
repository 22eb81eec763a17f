//! Volume ids in PersistentVolume specs.

use serde_json::Value;

use super::NAME;
use cmi_driver::{Code, Result, Status};

/// The driver of the volumes of before CSI.
pub const FLEX_DRIVER: &str = "simulated.capcmi.io/disk";
/// The option of such a volume that holds its id.
pub const FLEX_VOLUME_ID: &str = "volumeID";

/// The ids of the cloud's own volumes, in the order of the specs: `csi.volumeHandle` of the CSI driver
/// `simulated.capcmi.io`, and `flexVolume.options.volumeID` of the driver `simulated.capcmi.io/disk`. Other
/// volumes are left out (DRV-42..DRV-45).
///
/// # Errors
/// INVALID_ARGUMENT when a spec is no object (DRV-GV-03).
pub fn ids(specs: &[Value]) -> Result<Vec<String>> {
    if let Some(index) = specs.iter().position(|spec| !spec.is_object()) {
        return Err(Status::new(
            Code::InvalidArgument,
            format!("the PersistentVolume spec at index {index} is no object"),
        ));
    }
    Ok(specs
        .iter()
        .filter_map(id)
        .filter(|id| !id.is_empty())
        .map(str::to_owned)
        .collect())
}

fn id(spec: &Value) -> Option<&str> {
    let of = |source: &str, driver: &str| spec.get(source).filter(|source| source["driver"] == driver);
    of("csi", NAME)
        .map(|csi| &csi["volumeHandle"])
        .or_else(|| of("flexVolume", FLEX_DRIVER).map(|flex| &flex["options"][FLEX_VOLUME_ID]))?
        .as_str()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// DRV-42, DRV-43, DRV-44, DRV-45
    #[test]
    fn own_volumes_are_named_in_order_and_foreign_ones_left_out() {
        let specs = [
            json!({"flexVolume": {"driver": FLEX_DRIVER, "options": {FLEX_VOLUME_ID: "vol-2"}}}),
            json!({"nfs": {"server": "a", "path": "/"}}),
            json!({"csi": {"driver": "ebs.csi.aws.com", "volumeHandle": "vol-9"}}),
            json!({}),
            json!({"csi": {"driver": NAME, "volumeHandle": "vol-1"}}),
            json!({"csi": {"driver": NAME}}),
        ];
        for _ in 0..10 {
            assert_eq!(ids(&specs).unwrap(), ["vol-2", "vol-1"]);
        }
        assert_eq!(ids(&[]).unwrap(), Vec::<String>::new());
    }

    /// DRV-GV-03
    #[test]
    fn what_is_no_object_is_refused_by_its_index() {
        let status = ids(&[json!({}), json!("x")]).unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains("index 1"));
    }
}
