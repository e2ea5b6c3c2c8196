# shellcheck shell=bash
# Sourced by scripts that start several ranks on one machine with Open MPI: lets root do so, lets there be more ranks
# than cores, and keeps Open MPI from warning about networks and remote shells that a single machine does not need.
# Variables that are already set stay as they are. Not for clusters: there the launcher's own settings are right.
if ((EUID == 0)); then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
export OMPI_MCA_rmaps_base_oversubscribe="${OMPI_MCA_rmaps_base_oversubscribe-1}"
export OMPI_MCA_hwloc_base_binding_policy="${OMPI_MCA_hwloc_base_binding_policy-none}"
# One address space per container may not be readable from another process: copy through shared memory instead.
export OMPI_MCA_btl_vader_single_copy_mechanism="${OMPI_MCA_btl_vader_single_copy_mechanism-none}"
export OMPI_MCA_plm="${OMPI_MCA_plm-isolated}"
export OMPI_MCA_btl="${OMPI_MCA_btl-self,vader}"
export OMPI_MCA_btl_base_warn_component_unused="${OMPI_MCA_btl_base_warn_component_unused-0}"
export PMIX_MCA_psec="${PMIX_MCA_psec-native}"
