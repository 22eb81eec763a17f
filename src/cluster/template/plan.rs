//! Plans the reconcile of a template. Pure.

use std::sync::Arc;

use crate::api::cluster_api::Cluster;
use crate::api::paused_by;
use crate::api::v1alpha1::InfraMachineTemplate;

/// The action of a reconcile.
#[derive(Debug, PartialEq, Eq)]
pub enum Plan {
    /// Do nothing, and write nothing.
    NoOp,
    /// The template is paused; the message names the cause.
    Pause(String),
    /// Ask the driver to describe a machine of the template.
    Describe,
}

/// Plans the reconcile of a template for these Clusters. A template that several Clusters share is left alone
/// while any Cluster is paused. The paused Cluster may be moving to another management cluster, together with
/// the template.
pub fn plan(template: &InfraMachineTemplate, clusters: &[Arc<Cluster>]) -> Plan {
    if template.metadata.deletion_timestamp.is_some() {
        return Plan::NoOp;
    }
    match paused_by(template, clusters.iter().any(|cluster| cluster.is_paused())) {
        Some(by) => Plan::Pause(by),
        None => Plan::Describe,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::annotations;
    use crate::api::cluster_api::ClusterSpec;
    use crate::api::v1alpha1::InfraMachineTemplateSpec;

    fn template() -> InfraMachineTemplate {
        InfraMachineTemplate::new("t", InfraMachineTemplateSpec::default())
    }

    fn cluster(paused: bool) -> Arc<Cluster> {
        let spec = ClusterSpec {
            paused: Some(paused),
            ..ClusterSpec::default()
        };
        Arc::new(Cluster::new("c", spec))
    }

    #[test]
    fn a_template_names_the_cluster_or_annotation_that_pauses_it() {
        let mut template = template();
        assert_eq!(plan(&template, &[]), Plan::Describe);
        assert_eq!(plan(&template, &[cluster(false)]), Plan::Describe);
        let by_cluster = "Cluster spec.paused is set to true";
        let end = "; remove the pause to resume";
        assert_eq!(
            plan(&template, &[cluster(false), cluster(true)]),
            Plan::Pause(format!("{by_cluster}{end}"))
        );
        template.metadata.annotations = Some([(annotations::PAUSED.to_owned(), String::new())].into());
        let by_annotation = "InfraMachineTemplate has the cluster.x-k8s.io/paused annotation";
        assert_eq!(plan(&template, &[]), Plan::Pause(format!("{by_annotation}{end}")));
        assert_eq!(
            plan(&template, &[cluster(true)]),
            Plan::Pause(format!("{by_cluster}; {by_annotation}{end}"))
        );
    }
}
